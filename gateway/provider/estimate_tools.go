package provider

import (
	"strings"

	"github.com/tidwall/gjson"
)

// serverTool is what the provider says of a tool that it runs itself, and what the tool finds, which the model then reads.
const serverTool = 2500

// chatTools adds the tools of a chat: OpenAI writes them as TypeScript into the first message, others as JSON.
func (e *estimator) chatTools(found map[string]gjson.Result) {
	var ts typescript
	count := 0
	add := func(_, function gjson.Result) bool {
		count++
		if e.rules.typescript {
			ts.function(function)
		} else {
			e.frame(perTool)
			e.value(function)
		}
		return true
	}
	found["tools"].ForEach(func(_, tool gjson.Result) bool {
		if function := tool.Get("function"); function.Exists() {
			return add(tool, function)
		}
		count++
		e.guess(serverTool)
		e.value(tool)
		return true
	})
	found["functions"].ForEach(add)
	if count == 0 {
		return
	}
	e.frame(e.rules.tools)
	if choice := found["tool_choice"]; choice.IsObject() {
		e.frame(perMessage)
		e.value(choice)
	}
	e.text(ts.String())
}

// perTool is what stands around one tool that is written as JSON.
const perTool = 12

// maxSchemaDepth is how deep a schema is written as TypeScript; what lies deeper counts as the JSON that it is. Each level
// reads what is in it twice more.
const maxSchemaDepth = 8

// typescript writes function tools as OpenAI's models read them. The format is not documented; it shows in the templates of
// the open models, and agrees with what is billed.
type typescript struct{ strings.Builder }

// schema is what is written of a JSON schema.
type schema struct {
	description, kind, properties, required, enum, anyOf, oneOf, items, fallback gjson.Result
}

func readSchema(v gjson.Result) (s schema) {
	into := func(name string) *gjson.Result {
		switch name {
		case "description":
			return &s.description
		case "type":
			return &s.kind
		case "properties":
			return &s.properties
		case "required":
			return &s.required
		case "enum":
			return &s.enum
		case "anyOf":
			return &s.anyOf
		case "oneOf":
			return &s.oneOf
		case "items":
			return &s.items
		case "default":
			return &s.fallback
		}
		return nil
	}
	if v.IsObject() {
		v.ForEach(func(name, value gjson.Result) bool {
			if field := into(name.Str); field != nil {
				*field = value
			}
			return true
		})
	}
	return s
}

func (ts *typescript) function(function gjson.Result) {
	if ts.Len() == 0 {
		ts.WriteString("# Tools\n\n## functions\n\nnamespace functions {\n\n} // namespace functions\n\n")
	}
	ts.comment(function.Get("description"))
	ts.WriteString("type " + function.Get("name").Str + " = (")
	if parameters := readSchema(function.Get("parameters")); parameters.properties.IsObject() {
		ts.WriteString("_: ")
		ts.object(parameters, maxSchemaDepth)
	}
	ts.WriteString(") => any;\n\n")
}

func (ts *typescript) comment(description gjson.Result) {
	if description.Str != "" {
		ts.WriteString("// " + description.Str + "\n")
	}
}

func (ts *typescript) object(s schema, depth int) {
	required := map[string]bool{}
	s.required.ForEach(func(_, name gjson.Result) bool {
		required[name.Str] = true
		return true
	})
	ts.WriteString("{\n")
	s.properties.ForEach(func(name, raw gjson.Result) bool {
		property := readSchema(raw)
		ts.comment(property.description)
		ts.WriteString(name.Str)
		if !required[name.Str] {
			ts.WriteByte('?')
		}
		ts.WriteString(": ")
		ts.value(raw, property, depth)
		ts.WriteByte(',')
		if property.fallback.Exists() {
			ts.WriteString(" // default: " + property.fallback.Raw)
		}
		ts.WriteByte('\n')
		return true
	})
	ts.WriteByte('}')
}

func (ts *typescript) value(raw gjson.Result, s schema, depth int) {
	switch {
	case depth == 0:
		ts.WriteString(raw.Raw)
	case s.enum.IsArray():
		ts.union(s.enum, func(item gjson.Result) { ts.WriteString(item.Raw) })
	case s.anyOf.IsArray():
		ts.union(s.anyOf, func(item gjson.Result) { ts.value(item, readSchema(item), depth-1) })
	case s.oneOf.IsArray():
		ts.union(s.oneOf, func(item gjson.Result) { ts.value(item, readSchema(item), depth-1) })
	case s.kind.Str == "object" && s.properties.IsObject():
		ts.object(s, depth-1)
	case s.kind.Str == "array" && s.items.IsObject():
		ts.value(s.items, readSchema(s.items), depth-1)
		ts.WriteString("[]")
	case s.kind.Str == "integer":
		ts.WriteString("number")
	case s.kind.Str == "string", s.kind.Str == "number", s.kind.Str == "boolean", s.kind.Str == "null":
		ts.WriteString(s.kind.Str)
	case s.kind.IsArray():
		ts.union(s.kind, func(item gjson.Result) { ts.WriteString(item.Str) })
	default:
		ts.WriteString(raw.Raw)
	}
}

func (ts *typescript) union(items gjson.Result, write func(item gjson.Result)) {
	first := true
	items.ForEach(func(_, item gjson.Result) bool {
		if !first {
			ts.WriteString(" | ")
		}
		first = false
		write(item)
		return true
	})
}
