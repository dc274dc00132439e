package ledger

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// distinct is a usage whose fields all differ, found by reflection, so that a new field cannot be forgotten.
func distinct(u *Usage) (fields int) {
	n := int64(1)
	var set func(v reflect.Value)
	set = func(v reflect.Value) {
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Struct {
				set(f)
			} else {
				f.SetInt(n)
				n *= 2
				fields++
			}
		}
	}
	set(reflect.ValueOf(u).Elem())
	return fields
}

func TestClassesAreTheFieldsOfUsage(t *testing.T) {
	t.Parallel()
	var u Usage
	fields := distinct(&u)
	tokens, tools := u.Classes(), u.Calls.Classes()
	require.Equal(t, fields, len(tokens[:])+len(tools[:]))
	text, err := json.Marshal(u)
	require.NoError(t, err)
	var named map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &named))
	var calls map[Class]int64
	require.NoError(t, json.Unmarshal(named["calls"], &calls))
	next, total := Tokens(1), Tokens(0)
	for _, c := range u.Classes() {
		require.Equal(t, next, c.Tokens, c.Class)
		require.Contains(t, named, string(c.Class))
		next, total = next*2, total+c.Tokens
	}
	for _, c := range u.Calls.Classes() {
		require.Equal(t, int64(next), c.Calls, c.Class)
		require.Equal(t, c.Calls, calls[c.Class])
		next *= 2
	}
	require.Equal(t, total, u.Total())
	require.Equal(t, u.Total(), u.InputTotal()+u.OutputTotal())
	var none Usage
	require.Equal(t, u, none.Plus(u))
	require.Equal(t, 2*u.Total(), u.Plus(u).Total())

	text, err = json.Marshal(Usage{})
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(text))
}

// TestClassesSumToTheTotal is I7 of usage: input and output are disjoint and make up the total, and one negative class is seen.
func TestClassesSumToTheTotal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var u Usage
		v := reflect.ValueOf(&u).Elem()
		negative := false
		var in, out Tokens
		for i, c := range u.Classes() {
			n := rapid.Int64Range(-3, 1e12).Draw(t, string(c.Class))
			v.Field(i).SetInt(n)
			negative = negative || n < 0
			if c.Class.IsOutput() {
				out += Tokens(n)
			} else {
				in += Tokens(n)
			}
		}
		require.Equal(t, in, u.InputTotal())
		require.Equal(t, out, u.OutputTotal())
		require.Equal(t, in+out, u.Total())
		require.Equal(t, negative, u.Negative())
	})
}
