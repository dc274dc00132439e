package event

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

func fill() *Fill {
	return &Fill{
		Timezone: "Europe/Berlin", WeekStart: time.Monday,
		Families: []FillFamily{{"key[model]?plan=free", ledger.PeriodDay}, {"app", ledger.PeriodTotal}},
	}
}

func TestDecodeFillReadsWhatEncodeWrote(t *testing.T) {
	t.Parallel()
	data, err := fill().Encode()
	require.NoError(t, err)
	read, err := DecodeFill(data)
	require.NoError(t, err)
	require.Equal(t, fill(), read)
}

func TestDecodeFillRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Fill){
		"an unknown weekday": func(f *Fill) { f.WeekStart = 7 },
		"no time zone":       func(f *Fill) { f.Timezone = "" },
		"an unknown period":  func(f *Fill) { f.Families[1].Period = "hour" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fill()
			change(f)
			data, err := f.Encode()
			require.NoError(t, err)
			_, err = DecodeFill(data)
			require.Error(t, err)
		})
	}
}

func FuzzDecodeFill(f *testing.F) {
	data, err := fill().Encode()
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"timezone":"UTC","families":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := DecodeFill(data)
		if err != nil {
			return
		}
		again, err := read.Encode()
		require.NoError(t, err)
		second, err := DecodeFill(again)
		require.NoError(t, err)
		require.Equal(t, read, second)
	})
}
