package pg

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// copyRows inserts rows that are given as one array per column, in the order of names (comma-separated). COPY knows no ON
// CONFLICT: what is there must have been looked for, and a row that another settler inserts in between ends the transaction,
// see raced. It sends as it encodes, where a statement would build a message of megabytes first.
func copyRows(ctx context.Context, tx pgx.Tx, table, names string, rows int, columns []any) error {
	if rows == 0 {
		return nil
	}
	into := strings.Fields(strings.ReplaceAll(names, ",", " "))
	row := make([]any, len(columns))
	_, err := tx.CopyFrom(ctx, pgx.Identifier{table}, into, pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
		for c, column := range columns {
			value, err := valueAt(column, i)
			if err != nil {
				return nil, fmt.Errorf("column %s: %w", into[c], err)
			}
			row[c] = value
		}
		return row, nil
	}))
	return err
}

func valueAt(column any, i int) (any, error) {
	switch c := column.(type) {
	case []string:
		return c[i], nil
	case []*string:
		return c[i], nil
	case [][]string:
		return c[i], nil
	case []int64:
		return c[i], nil
	case []bool:
		return c[i], nil
	case []time.Time:
		return c[i], nil
	case []*time.Time:
		return c[i], nil
	default:
		return nil, fmt.Errorf("no column of %T is copied", column)
	}
}
