package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Lengths that no file and no function may reach.
const (
	maxFileLines = 500
	maxFuncLines = 80
)

// lengths checks files and functions. Straight-line wiring and tables may be longer where a comment in the function, or
// its doc comment, begins a line with "Long:" and says why.
func lengths(tr *tree) []string {
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(tr.texts)) {
		switch path.Ext(name) {
		case ".go", ".lua", ".sql":
			if n := lines(tr.texts[name]); n >= maxFileLines {
				problems = append(problems, fmt.Sprintf("%s: %d lines, must be under %d", name, n, maxFileLines))
			}
		}
	}
	for _, name := range tr.names(true) {
		file := tr.goes[name]
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := tr.fset.Position(fn.End()).Line - tr.fset.Position(fn.Pos()).Line + 1
			if n >= maxFuncLines && !saysWhyLong(file, fn) {
				problems = append(problems, fmt.Sprintf("%s: %s has %d lines, must be under %d, or say \"Long: <why>\" in a comment",
					tr.at(fn.Pos()), fn.Name.Name, n, maxFuncLines))
			}
		}
	}
	return problems
}

func saysWhyLong(file *ast.File, fn *ast.FuncDecl) bool {
	start := fn.Pos()
	if fn.Doc != nil {
		start = fn.Doc.Pos()
	}
	for _, group := range file.Comments {
		if group.Pos() < start || group.End() > fn.End() {
			continue
		}
		for line := range strings.Lines(group.Text()) {
			if why, ok := strings.CutPrefix(line, "Long:"); ok && strings.TrimSpace(why) != "" {
				return true
			}
		}
	}
	return false
}

func TestLengths(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("\n", maxFuncLines)
	check(t, lengths, broken{
		files: map[string]string{
			"a.go": "package a\nfunc short() {}\nfunc long() {" + long + "}\n// wired is wiring.\n//\n// Long: wiring.\nfunc wired() {" + long + "}\n" +
				"func table() {\n// Long: a table.\n" + long + "}\n// bare is long.\n//\n// Long:\nfunc bare() {" + long + "}",
			"a.sql": strings.Repeat("--\n", maxFileLines),
			"a.lua": strings.Repeat("--\n", maxFileLines-1),
		},
		want: []string{"a.sql: 500 lines", "a.go:3: long has 81 lines", fmt.Sprintf("a.go:%d: bare has", 14+3*maxFuncLines)},
	})
}

// tests checks what test files call: require and never assert, and no skip but that of -short.
func tests(tr *tree) []string {
	var problems []string
	for _, name := range tr.names(true) {
		if slices.Contains(tr.imports(name), "github.com/stretchr/testify/assert") {
			problems = append(problems, name+": testify/require, never assert")
		}
		var stack []ast.Node
		ast.Inspect(tr.goes[name], func(node ast.Node) bool {
			if node == nil {
				stack = stack[:len(stack)-1]
				return true
			}
			stack = append(stack, node)
			if call, ok := node.(*ast.CallExpr); ok && isSkip(call, stack) && !slices.ContainsFunc(stack, asksShort) {
				problems = append(problems, tr.at(call.Pos())+": a missing service fails the test; only testing.Short() may skip")
			}
			return true
		})
	}
	return problems
}

// isSkip reports whether a call skips a test or benchmark. A *rapid.T skips one step of a random walk, which is fine.
func isSkip(call *ast.CallExpr, stack []ast.Node) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, selector.Sel.Name) {
		return false
	}
	receiver, ok := selector.X.(*ast.Ident)
	return ok && parameterPackage(receiver.Name, stack) == "testing"
}

// parameterPackage returns the package of the type of a parameter of the innermost function that has one of that name.
func parameterPackage(name string, stack []ast.Node) string {
	for _, node := range slices.Backward(stack) {
		var params *ast.FieldList
		switch fn := node.(type) {
		case *ast.FuncDecl:
			params = fn.Type.Params
		case *ast.FuncLit:
			params = fn.Type.Params
		default:
			continue
		}
		for _, field := range params.List {
			if !slices.ContainsFunc(field.Names, func(id *ast.Ident) bool { return id.Name == name }) {
				continue
			}
			kind := field.Type
			if star, ok := kind.(*ast.StarExpr); ok {
				kind = star.X
			}
			if qualified, ok := kind.(*ast.SelectorExpr); ok {
				if pkg, ok := qualified.X.(*ast.Ident); ok {
					return pkg.Name
				}
			}
			return ""
		}
	}
	return ""
}

// asksShort reports whether a node is `if testing.Short()`, possibly with more in its condition.
func asksShort(node ast.Node) bool {
	branch, ok := node.(*ast.IfStmt)
	if !ok {
		return false
	}
	found := false
	ast.Inspect(branch.Cond, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Short" {
			found = true
		}
		return true
	})
	return found
}

func TestTests(t *testing.T) {
	t.Parallel()
	check(t, tests, broken{
		files: map[string]string{
			"a_test.go": "package a\nimport \"github.com/stretchr/testify/assert\"\n" +
				"func TestA(t *testing.T) {\nif testing.Short() {\nt.Skip(\"slow\")\n}\nif !redis {\nt.Skip(\"no redis\")\n}\n" +
				"rapid.Check(t, func(t *rapid.T) {\nt.Skip(\"this step\")\n})\n}\nfunc start(tb testing.TB) {\ntb.SkipNow()\n}",
		},
		want: []string{"a_test.go: testify/require", "a_test.go:8: a missing service", "a_test.go:15: a missing service"},
	})
}

// scripts checks that every Lua script begins with a comment that says what its callers must know.
func scripts(tr *tree) []string {
	parts := []string{"Purpose", "KEYS", "ARGV", "Reply", "Cost", "Idempotency", "Clock"}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(tr.texts)) {
		if path.Ext(name) != ".lua" {
			continue
		}
		var header strings.Builder
		for line := range strings.Lines(string(tr.texts[name])) {
			if !strings.HasPrefix(line, "--") {
				break
			}
			header.WriteString(line)
		}
		for _, part := range parts {
			if !regexp.MustCompile(`(?m)^-- ` + part + `: *\S`).MatchString(header.String()) {
				problems = append(problems, name+": the header does not say \"-- "+part+": …\"")
			}
		}
	}
	return problems
}

func TestScripts(t *testing.T) {
	t.Parallel()
	check(t, scripts, broken{
		files: map[string]string{
			"lua/a.lua": "-- Purpose: none.\n-- KEYS: none.\n-- ARGV: 1 one.\n-- Reply: 1.\n-- Cost:\n-- Idempotency: yes.\n\n-- Clock: none.\nreturn 1\n",
		},
		want: []string{"lua/a.lua: the header does not say \"-- Cost: …\"", "lua/a.lua: the header does not say \"-- Clock: …\""},
	})
}

// places checks that no file names a place that exists on one computer only, or leaves work without an issue.
func places(tr *tree) []string {
	bad := []struct {
		pattern *regexp.Regexp
		what    string
	}{
		{regexp.MustCompile(`/(home|Users)/[a-z][a-z0-9._-]*/`), "a path in somebody's home"},
		{regexp.MustCompile(`\b(TODO|FIXME|XXX)\b(?:[^(]|\([^#])`), "unfinished work must name its issue, as in TODO(#3)"},
	}
	if tr.root != "" {
		bad = append(bad, struct {
			pattern *regexp.Regexp
			what    string
		}{regexp.MustCompile(regexp.QuoteMeta(tr.root) + `\b`), "the path of this checkout"})
	}
	if home, err := os.UserHomeDir(); err == nil && home != "/" {
		bad = append(bad, struct {
			pattern *regexp.Regexp
			what    string
		}{regexp.MustCompile(regexp.QuoteMeta(home) + `/\w`), "a path in your home"})
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(tr.texts)) {
		text := tr.texts[name]
		if name == "internal/lint/text_test.go" || bytes.IndexByte(text, 0) >= 0 {
			continue // this file names what it looks for; binary files have no text
		}
		for _, b := range bad {
			for _, at := range b.pattern.FindAllIndex(text, -1) {
				if bytes.HasPrefix(text[at[0]:], []byte("/home/linuxbrew/")) {
					continue // where Homebrew lives on every Linux
				}
				problems = append(problems, fmt.Sprintf("%s:%d: %s: %q", name, 1+bytes.Count(text[:at[0]], []byte("\n")), b.what, text[at[0]:at[1]]))
			}
		}
	}
	return problems
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	check(t, places, broken{
		files: map[string]string{"a.md": "fine\nsee /home/eve/x\nTODO(#3) later\nTODO: now\n"},
		want:  []string{"a.md:2: a path in somebody's home", "a.md:4: unfinished work"},
	})
}
