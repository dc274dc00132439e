package telemetry

import "log/slog"

// Secret is a text that never shows itself in logs or messages; Reveal is the only way to it.
type Secret string

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[secret]"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Reveal is the secret itself.
func (s Secret) Reveal() string { return string(s) }
