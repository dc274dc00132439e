package policy

import (
	"slices"
	"strconv"
	"strings"
)

const (
	shown       = 60  // characters of a text from the file that a message repeats
	listed      = 16  // names that a message lists
	compared    = 200 // names that are searched for a near one
	suggestions = 25  // problems after which near names are no longer searched, so that a hostile file costs little
)

// shorten cuts a text from the file so that a message stays readable.
func shorten(text string) string {
	runes := 0
	for i := range text {
		if runes == shown {
			return text[:i] + "…"
		}
		runes++
	}
	return text
}

func quote(text string) string { return strconv.Quote(shorten(text)) }

// choices says what may stand where name stands, and which of it may have been meant.
func (r *reader) choices(name string, known []string) string {
	if len(known) == 0 {
		return "none is declared"
	}
	var b strings.Builder
	b.WriteString("use ")
	for i, option := range known[:min(len(known), listed)] {
		switch {
		case i > 0 && i == len(known)-1:
			b.WriteString(" or " + shorten(option))
		case i > 0:
			b.WriteString(", " + shorten(option))
		default:
			b.WriteString(shorten(option))
		}
	}
	if len(known) > listed {
		b.WriteString(", …")
	}
	if len(r.problems) < suggestions {
		if near := nearest(name, known); near != "" {
			b.WriteString("; did you mean " + near + "?")
		}
	}
	return b.String()
}

// nearest is the known name that differs least from name, "" when none is near.
func nearest(name string, known []string) string {
	if len(name) > shown || len(known) > compared {
		return ""
	}
	best, least := "", max(2, len(name)/3+1)
	for _, option := range known {
		if len(option) > shown {
			continue
		}
		if d := distance(strings.ToLower(name), strings.ToLower(option)); d < least && d < len(option) {
			best, least = option, d
		}
	}
	return best
}

// distance is how many bytes must be added, removed, replaced or swapped with their neighbour to make a of b.
func distance(a, b string) int {
	var before, above []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, above, row = above, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			change := above[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

// sorted lists the names of a section for choices.
func sorted[T any](section map[string]T) []string {
	names := make([]string, 0, len(section))
	for name := range section {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
