package lint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// instruction is one instruction of a Dockerfile, its continued lines joined.
type instruction struct {
	name, rest string
}

// parseDockerfile splits a Dockerfile into instructions. It knows comments and continuation lines, and no heredocs.
func parseDockerfile(text string) []instruction {
	var instructions []instruction
	var pending string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pending += line
		if strings.HasSuffix(line, `\`) {
			pending = strings.TrimSuffix(pending, `\`)
			continue
		}
		name, rest, _ := strings.Cut(pending, " ")
		instructions = append(instructions, instruction{name, rest})
		pending = ""
	}
	return instructions
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	root := repository(t).root
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	known := []string{"FROM", "WORKDIR", "ENV", "COPY", "RUN", "ARG", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"}

	stages, last := map[string]bool{}, map[string]string{}
	var all strings.Builder
	for _, i := range parseDockerfile(string(text)) {
		require.Contains(t, known, i.name)
		require.NotEmpty(t, i.rest, i.name)
		all.WriteString(i.name + " " + i.rest + "\n")
		switch i.name {
		case "FROM":
			last = map[string]string{}
			if _, stage, ok := strings.Cut(i.rest, " AS "); ok {
				stages[stage] = true
			}
		case "COPY":
			if from := regexp.MustCompile(`--from=(\S+)`).FindStringSubmatch(i.rest); from != nil {
				require.True(t, stages[from[1]], "COPY from an unknown stage %s", from[1])
			}
		case "ENTRYPOINT", "HEALTHCHECK":
			var command []string
			_, list, ok := strings.Cut(i.rest, "[")
			require.True(t, ok, "%s must be in exec form: the image has no shell", i.name)
			require.NoError(t, json.Unmarshal([]byte("["+list), &command))
			require.Equal(t, "/tollgate", command[0])
		}
		last[i.name] = i.rest
	}

	require.Equal(t, "scratch", last["FROM"])
	require.Equal(t, "65532:65532", last["USER"], "a user without rights, by number: Kubernetes cannot check a name")
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "-tags timetzdata", "ca-certificates.crt", "--mount=type=cache,target="} {
		require.Contains(t, all.String(), want)
	}

	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)
	require.NotNil(t, version)
	require.Contains(t, all.String(), "golang:"+string(version[1])+"-", "the image is built with another Go than go.mod asks for")
}

// What the binary is built from must reach the build.
func TestDockerignoreKeepsSources(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository(t).root, ".dockerignore"))
	require.NoError(t, err)
	ignored := strings.Fields(string(text))
	for _, needed := range []string{"go.mod", "go.sum", "main.go", "gateway", "settler", "ledger", "lua", "migrations", "internal"} {
		require.False(t, slices.Contains(ignored, needed), "%s is left out", needed)
	}
}
