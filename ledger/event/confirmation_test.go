package event

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfirmationLacks(t *testing.T) {
	t.Parallel()
	c := Confirmation{Through: 20, Missing: []Span{{3, 5}, {9, 10}}}
	for _, row := range []struct {
		of   Span
		want []Span
	}{
		{Span{1, 3}, nil},
		{Span{1, 4}, []Span{{3, 4}}},
		{Span{4, 12}, []Span{{4, 5}, {9, 10}}},
		{Span{10, 21}, nil},
		{Span{8, 23}, []Span{{9, 10}, {21, 23}}},
		{Span{30, 31}, []Span{{30, 31}}},
	} {
		require.Equal(t, row.want, c.Lacks(row.of), "%v", row.of)
	}
	require.Equal(t, []Span{{1, 9}}, Confirmation{}.Lacks(Span{1, 9}))
}

func TestDecodeConfirmation(t *testing.T) {
	t.Parallel()
	c := Confirmation{Through: 20, Missing: []Span{{3, 5}, {9, 10}}, Settled: true}
	text, err := c.Encode()
	require.NoError(t, err)
	again, err := DecodeConfirmation(text)
	require.NoError(t, err)
	require.Equal(t, c, again)
	for _, bad := range []string{
		`20`, ``, `{"through":-1}`, `{"through":18446744073709551615}`, `{"through":9,"missing":[{"from":0,"until":3}]}`,
		`{"through":9,"missing":[{"from":3,"until":3}]}`, `{"through":9,"missing":[{"from":3,"until":12}]}`,
		`{"through":9,"missing":[{"from":5,"until":6},{"from":3,"until":4}]}`,
	} {
		_, err := DecodeConfirmation([]byte(bad))
		require.Error(t, err, bad)
	}
}
