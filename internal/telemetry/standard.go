package telemetry

import (
	"log"
	"log/slog"
	"strings"
)

// TakeStandard has what libraries write through Go's standard logger go to ours, until the process ends: net/http tells there what
// a provider sent unasked, and a provider may send its key back. Only the beginning of such a text is kept, up to what it quotes.
// It is for commands: the standard logger is one for the process.
func TakeStandard(to *slog.Logger) {
	log.SetFlags(0)
	log.SetPrefix("")
	log.SetOutput(standard{to})
}

// standard takes the lines of the standard logger.
type standard struct{ log *slog.Logger }

// quotes begin what a text quotes of somebody else.
var quotes = []string{"starting with", `"`, "`", "'", "\n"}

// maxStandard is how much is kept of a text that quotes nothing.
const maxStandard = 120

func (s standard) Write(line []byte) (int, error) {
	text := string(line[:min(len(line), maxStandard)])
	for _, quote := range quotes {
		text, _, _ = strings.Cut(text, quote)
	}
	s.log.Warn("a library reports something", "begins", strings.TrimSpace(strings.ToValidUTF8(text, "")))
	return len(line), nil
}
