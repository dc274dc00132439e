package pg

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Chain is what a look at the seals found.
type Chain struct {
	Blocks   int64
	Rows     int64    // sealed and looked at
	Unsealed int64    // rows that no block covers yet
	Head     []byte   // hash of the last block, empty without one
	Contains bool     // some block has the hash that was asked for
	Wrong    []string // what does not match, in the order of the chain; at most wrongAtMost
}

// wrongAtMost bounds how many wrong rows are named. All of the chain is read nevertheless.
const wrongAtMost = 10

// VerifyChain computes the hash of every block and row anew and compares them with the seals, as of one instant and without
// locking anybody. known is a hash that was the head once, empty for none. Memory does not grow with the ledger.
//
// Whoever may drop triggers can also seal anew from some block on. Only a head that was kept elsewhere shows that.
func (s *Store) VerifyChain(ctx context.Context, known []byte) (Chain, error) {
	var c Chain
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error { return c.read(ctx, tx, known) })
	if err != nil {
		return c, fmt.Errorf("verify chain: %w", err)
	}
	return c, nil
}

func (c *Chain) read(ctx context.Context, tx pgx.Tx, known []byte) error {
	// The hash of a block is checked against its own content, and the content against the rows.
	const next = `
SELECT s.block, s.first_serial, s.last_serial, s.previous, s.hash, s.hash = ` + sealHash + `
FROM seals s WHERE s.block > $1 ORDER BY s.block LIMIT 1`
	compare := `SELECT c.n, sha256(c.content) = (SELECT sha256(content) FROM seals WHERE block = $3) FROM (` + sealedContent(bodyHashNow) + `) c`
	const unsealed = `SELECT (SELECT count(*) FROM events WHERE serial > $1) + (SELECT count(*) FROM transfers WHERE serial > $1)`
	expected, last, previous := int64(1), int64(0), make([]byte, 32)
	for block := int64(0); ; {
		var first, until int64
		var before, hash []byte
		var whole bool
		err := tx.QueryRow(ctx, next, block).Scan(&block, &first, &until, &before, &hash, &whole)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err != nil {
			return err
		}
		switch {
		case block != expected:
			c.wrong("seals: block %d was removed", expected)
		case !whole:
			c.wrong("seals: block %d was changed", block)
		case !bytes.Equal(before, previous):
			c.wrong("seals: block %d does not follow block %d: one of them was replaced", block, block-1)
		case first != last+1:
			c.wrong("seals: block %d begins at serial %d, not at %d", block, first, last+1)
		}
		var rows int64
		var same bool
		if err := tx.QueryRow(ctx, compare, first-1, until, block).Scan(&rows, &same); err != nil {
			return fmt.Errorf("block %d: %w", block, err)
		}
		if !same {
			if err := c.nameRows(ctx, tx, block, first-1, until); err != nil {
				return fmt.Errorf("block %d: %w", block, err)
			}
		}
		c.Blocks, c.Rows, c.Head = c.Blocks+1, c.Rows+rows, hash
		c.Contains = c.Contains || bytes.Equal(hash, known)
		expected, last, previous = block+1, until, hash
	}
	return tx.QueryRow(ctx, unsealed, last).Scan(&c.Unsealed)
}

func (c *Chain) wrong(format string, args ...any) {
	if len(c.Wrong) < wrongAtMost {
		c.Wrong = append(c.Wrong, fmt.Sprintf(format, args...))
	}
}

// sealedRow is one row as a block keeps it.
type sealedRow struct {
	serial int64
	table  string
	id     string
	digest [16]byte
}

// nameRows finds what differs between a block and its rows. Both are in the order of their serials.
func (c *Chain) nameRows(ctx context.Context, tx pgx.Tx, block, after, until int64) error {
	const kept = `SELECT content FROM seals WHERE block = $1`
	present := `SELECT content FROM (` + sealedContent(bodyHashNow) + `) c`
	var was, is []byte
	if err := tx.QueryRow(ctx, kept, block).Scan(&was); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, present, after, until).Scan(&is); err != nil {
		return err
	}
	then, err := sealedRows(was)
	if err != nil {
		c.wrong("seals: block %d: %v", block, err)
		return nil
	}
	now, err := sealedRows(is)
	if err != nil {
		return err
	}
	for len(then) > 0 || len(now) > 0 {
		switch {
		case len(now) == 0 || len(then) > 0 && then[0].serial < now[0].serial:
			c.wrong("%s: row %s (serial %d) was removed", then[0].table, then[0].id, then[0].serial)
			then = then[1:]
		case len(then) == 0 || now[0].serial < then[0].serial:
			c.wrong("%s: row %s (serial %d) was added", now[0].table, now[0].id, now[0].serial)
			now = now[1:]
		case then[0] != now[0] && len(now) > 1 && now[1] == then[0]: // a second row under the same serial
			c.wrong("%s: row %s (serial %d) was added", now[0].table, now[0].id, now[0].serial)
			now = now[1:]
		default:
			if then[0] != now[0] {
				c.wrong("%s: row %s (serial %d) was changed", then[0].table, then[0].id, then[0].serial)
			}
			then, now = then[1:], now[1:]
		}
	}
	return nil
}

// sealedRows reads the content of a block.
func sealedRows(content []byte) ([]sealedRow, error) {
	const fixed = 8 + 1 + 16 + 2
	var rows []sealedRow
	for len(content) > 0 {
		if len(content) < fixed {
			return nil, errors.New("its content is cut off")
		}
		r := sealedRow{serial: int64(binary.BigEndian.Uint64(content)), table: "events", digest: [16]byte(content[9:25])}
		if content[8] == 't' {
			r.table = "transfers"
		}
		end := fixed + int(binary.BigEndian.Uint16(content[25:]))
		if len(content) < end {
			return nil, errors.New("its content is cut off")
		}
		r.id = string(content[fixed:end])
		rows, content = append(rows, r), content[end:]
	}
	return rows, nil
}
