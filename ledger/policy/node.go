package policy

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// reader collects what is wrong with one file while it is read.
type reader struct {
	lookupEnv func(string) (string, bool)
	problems  Problems
	warnings  Problems
}

// value is one node of the file with the path that leads to it. Reading it as something that it is not is a problem, and
// gives the zero value.
type value struct {
	r     *reader
	node  *yaml.Node
	field string
}

func (v value) problem(format string, args ...any) Problem {
	return Problem{Line: v.node.Line, Column: v.node.Column, Field: v.field, Message: fmt.Sprintf(format, args...)}
}

func (v value) fail(format string, args ...any) {
	v.r.problems = append(v.r.problems, v.problem(format, args...))
}

func (v value) warn(format string, args ...any) {
	v.r.warnings = append(v.r.warnings, v.problem(format, args...))
}

// mismatch reports a node of the wrong kind. An alias has been reported already.
func (v value) mismatch(want string) {
	if v.node.Kind != yaml.AliasNode {
		v.fail("expected %s, found %s", want, v.describe())
	}
}

func (v value) describe() string {
	switch {
	case v.node.Kind == yaml.MappingNode:
		return "a map"
	case v.node.Kind == yaml.SequenceNode:
		return "a list"
	case v.null():
		return "nothing"
	case v.node.ShortTag() == "!!str":
		return "the text " + quote(v.node.Value)
	default:
		return quote(v.node.Value)
	}
}

func (v value) null() bool { return v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!null" }

// child is a node inside v. Long names are cut in its path, which every problem below it repeats.
func (v value) child(node *yaml.Node, name string) value {
	name = shorten(name)
	plain := name != "" && strings.Trim(name, nameBytes) == ""
	switch {
	case !plain:
		return value{v.r, node, v.field + "[" + quote(name) + "]"}
	case v.field == "":
		return value{v.r, node, name}
	default:
		return value{v.r, node, v.field + "." + name}
	}
}

// entry is one key of a map with its value.
type entry struct {
	name string
	key  value // the place of the name
	value
}

// entries reads a map with free names. Nothing where a map is expected is an empty map. Empty and repeated names are
// problems; of a repeated name the first entry counts.
func (v value) entries() []entry {
	if v.null() {
		return nil
	}
	if v.node.Kind != yaml.MappingNode {
		v.mismatch("a map")
		return nil
	}
	seen := make(map[string]int, len(v.node.Content)/2)
	var list []entry
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key, node := v.node.Content[i], v.node.Content[i+1]
		at := v.child(key, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode:
			value{v.r, key, v.field}.mismatch("a name")
			continue
		case key.ShortTag() == "!!merge":
			continue
		case key.Value == "" || key.ShortTag() == "!!null":
			at.fail("a name is missing before the colon")
			continue
		case strings.Contains(key.Value, "${"):
			at.fail("${…} is replaced in values, not in names: write the name out")
			continue
		case seen[key.Value] > 0:
			at.fail("repeated: it stands in line %d already; keep one", seen[key.Value])
			continue
		}
		seen[key.Value] = key.Line
		list = append(list, entry{key.Value, at, v.child(node, key.Value)})
	}
	return list
}

// record is a map whose names are given by the grammar.
type record struct {
	value
	fields map[string]value
}

// record reads a map that may have the known fields and no others.
func (v value) record(known ...string) record {
	rec := record{v, make(map[string]value, len(known))}
	for _, e := range v.entries() {
		if slices.Contains(known, e.name) {
			rec.fields[e.name] = e.value
		} else {
			e.key.fail("unknown field; %s", v.r.choices(e.name, known))
		}
	}
	return rec
}

func (rec record) get(name string) (value, bool) {
	v, ok := rec.fields[name]
	return v, ok
}

// isMap is false when something else stands where the record should, which has been reported.
func (rec record) isMap() bool { return rec.node.Kind == yaml.MappingNode || rec.null() }

// require reports the field when it is missing.
func (rec record) require(name, advice string) (value, bool) {
	v, ok := rec.fields[name]
	if !ok && rec.isMap() {
		rec.fail("%s is missing: %s", name, advice)
	}
	return v, ok
}

// items reads a list. Nothing where a list is expected is an empty list.
func (v value) items() []value {
	if v.null() {
		return nil
	}
	if v.node.Kind != yaml.SequenceNode {
		v.mismatch("a list")
		return nil
	}
	list := make([]value, len(v.node.Content))
	for i, node := range v.node.Content {
		list[i] = value{v.r, node, fmt.Sprintf("%s[%d]", v.field, i)}
	}
	return list
}

// refuseIndirection reports anchors, aliases, merge keys and explicit tags anywhere below node.
func (r *reader) refuseIndirection(node *yaml.Node) {
	v := value{r, node, ""}
	switch {
	case node.Kind == yaml.AliasNode:
		v.fail("alias *%s: a policy has no aliases; write the value out", node.Value)
		return
	case node.Anchor != "":
		v.fail("anchor &%s: a policy has no anchors; remove it", node.Anchor)
	case node.Kind == yaml.ScalarNode && node.ShortTag() == "!!merge":
		v.fail("merge key <<: a policy has no merge keys; write the fields out")
	case node.Style&yaml.TaggedStyle != 0:
		v.fail("tag %s: a policy has no tags; remove it", quote(node.Tag))
	}
	for _, child := range node.Content {
		r.refuseIndirection(child)
	}
}
