package lint

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// everything matches every folder; folder/... matches a folder and all below it.
const everything = "..."

// layout says which of our own packages the packages of a folder may import, tests aside. The most specific line counts.
var layout = []struct {
	folder string
	may    []string
}{
	{".", []string{"internal/..."}},
	{"ledger", nil},
	{"ledger/event", []string{"ledger"}},
	{"ledger/keys", []string{"ledger"}},
	{"ledger/policy", []string{"ledger", "ledger/event", "ledger/price"}},
	{"ledger/price", []string{"ledger"}},
	{"ledger/pg", []string{"ledger/..."}},
	{"ledger/ledgertest", []string{"ledger/..."}},
	{"lua", []string{"ledger/..."}},
	{"migrations", nil},
	{"gateway/...", []string{"gateway/...", "ledger/...", "lua"}},
	{"settler/...", []string{"settler/...", "ledger/...", "lua"}},
	{"internal/...", []string{everything}},
	{"dashboards", nil},
	{"e2e/...", []string{everything}},
}

// never says what no chain of imports may reach, however long, and why.
var never = []struct{ from, to, why string }{
	{"gateway/...", "ledger/pg", "the gateway never waits for Postgres"},
	{"gateway/...", "settler/...", "they meet in ledger/event, lua and ledger/policy"},
	{"settler/...", "gateway/...", "they meet in ledger/event, lua and ledger/policy"},
	{"internal/sim/...", "ledger/price", "its books must be independent of the ledger's"},
	{"internal/sim/...", "gateway/...", "its books must be independent of the gateway's"},
	{"gateway/...", "e2e/...", "it is for tests"},
	{"settler/...", "e2e/...", "it is for tests"},
	{"internal/...", "e2e/...", "it is for tests"},
}

// libraries says which folders may import a library (its path, or anything below it), tests aside.
var libraries = map[string][]string{
	"github.com/gin-gonic/gin":                   {"gateway", "internal/admin", "internal/bench"},
	"github.com/jackc/pgx/v5":                    {"ledger/pg", "migrations", "internal/...", "e2e/..."},
	"github.com/pressly/goose/v3":                {"migrations"},
	"github.com/redis/go-redis/v9":               {"lua", "internal/...", "e2e/..."},
	"github.com/nats-io/nats.go":                 {"gateway/...", "settler/...", "internal/...", "e2e/..."},
	"github.com/nats-io/nats-server/v2":          {"internal/dev/...", "e2e/..."},
	"github.com/alicebob/miniredis/v2":           {"internal/dev/..."},
	"github.com/fergusstrange/embedded-postgres": {"internal/dev/..."},
	"github.com/spf13/cobra":                     {".", "internal/command/..."},
	"github.com/stretchr/testify":                {"ledger/ledgertest", "e2e/..."},
	"pgregory.net/rapid":                         {"ledger/ledgertest", "e2e/..."},
	"testing":                                    {"ledger/ledgertest", "e2e/..."},
}

// matches reports whether a folder is the pattern, or below it where the pattern ends in /....
func matches(pattern, folder string) bool {
	base, below := strings.CutSuffix(pattern, "/...")
	return pattern == everything || folder == base || below && strings.HasPrefix(folder, base+"/")
}

func anyMatches(patterns []string, folder string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, folder) })
}

// mayImport returns the longest line of layout that matches the folder.
func mayImport(folder string) (may []string, ok bool) {
	best := -1
	for _, line := range layout {
		if matches(line.folder, folder) && len(line.folder) > best {
			best, may, ok = len(line.folder), line.may, true
		}
	}
	return may, ok
}

func imports(tr *tree) []string {
	var problems []string
	for _, name := range tr.names(false) {
		folder := path.Dir(name)
		may, known := mayImport(folder)
		if !known {
			problems = append(problems, name+": folder "+folder+" is not in the layout table of this test")
			continue
		}
		for _, imported := range tr.imports(name) {
			if to, ok := own(imported); ok {
				if !anyMatches(may, to) {
					problems = append(problems, fmt.Sprintf("%s: %s must not import %s (may: %s)", name, folder, to, strings.Join(may, " ")))
				}
				continue
			}
			for library, folders := range libraries {
				if (imported == library || strings.HasPrefix(imported, library+"/")) && !anyMatches(folders, folder) {
					problems = append(problems, fmt.Sprintf("%s: %s stays in %s", name, library, strings.Join(folders, ", ")))
				}
			}
		}
	}
	return append(problems, reaches(tr)...)
}

// reaches follows chains of imports and finds those that never forbids.
func reaches(tr *tree) []string {
	graph := map[string][]string{}
	for _, name := range tr.names(false) {
		folder := path.Dir(name)
		if _, known := graph[folder]; !known {
			graph[folder] = nil
		}
		for _, imported := range tr.imports(name) {
			if to, ok := own(imported); ok {
				graph[folder] = append(graph[folder], to)
			}
		}
	}
	var problems []string
	for _, from := range slices.Sorted(maps.Keys(graph)) {
		chains := chains(graph, from)
		for _, to := range slices.Sorted(maps.Keys(chains)) {
			for _, n := range never {
				if matches(n.from, from) && matches(n.to, to) {
					problems = append(problems, fmt.Sprintf("%s: must not reach %s: %s (%s)", from, to, n.why, chains[to]))
				}
			}
		}
	}
	return problems
}

// chains returns, for each folder that from reaches, the shortest chain of imports.
func chains(graph map[string][]string, from string) map[string]string {
	found, queue := map[string]string{}, []string{from}
	chain := map[string]string{from: from}
	for len(queue) > 0 {
		folder := queue[0]
		queue = queue[1:]
		for _, to := range graph[folder] {
			if _, seen := chain[to]; !seen {
				chain[to] = chain[folder] + " > " + to
				found[to] = chain[to]
				queue = append(queue, to)
			}
		}
	}
	return found
}

func TestImports(t *testing.T) {
	t.Parallel()
	check(t, imports, broken{
		files: map[string]string{
			"ledger/a.go":         "package ledger\nimport _ \"tollgate/lua\"",
			"ledger/a_test.go":    "package ledger\nimport _ \"tollgate/lua\"", // tests may
			"gateway/a.go":        "package gateway\nimport _ \"github.com/gin-gonic/gin\"\nimport _ \"tollgate/lua\"",
			"gateway/outbox/a.go": "package outbox\nimport _ \"github.com/gin-gonic/gin/render\"",
			"lua/a.go":            "package lua\nimport _ \"tollgate/ledger/pg\"",
			"ledger/pg/a.go":      "package pg\nimport _ \"github.com/jackc/pgx/v5/pgxpool\"",
			"extra/a.go":          "package extra",
		},
		want: []string{
			"extra/a.go: folder extra is not in the layout table",
			"gateway/outbox/a.go: github.com/gin-gonic/gin stays in gateway, internal/admin",
			"ledger/a.go: ledger must not import lua",
			"gateway: must not reach ledger/pg: the gateway never waits for Postgres (gateway > lua > ledger/pg)",
		},
	})
}

func topLevel(tr *tree) []string {
	allowed := strings.Fields("gateway settler ledger migrations lua dashboards e2e internal " +
		"docker-compose.yml go.mod go.sum README.md LICENSE main.go Makefile Dockerfile")
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(tr.texts)) {
		top, _, _ := strings.Cut(name, "/")
		if !strings.HasPrefix(top, ".") && !slices.Contains(allowed, top) {
			problems = append(problems, name+": "+top+" does not belong at the top level")
		}
	}
	return problems
}

func TestTopLevel(t *testing.T) {
	t.Parallel()
	check(t, topLevel, broken{
		files: map[string]string{"main.go": "package main", ".ci/run": "", "pkg/x.txt": "", "notes.md": ""},
		want:  []string{"notes.md: ", "pkg/x.txt: pkg does not belong"},
	})
}

// packages checks names and documentation: one package main, no catch-all name, exactly one package comment each. A
// package of tests only carries its comment in a test file.
func packages(tr *tree) []string {
	catchAll := strings.Fields("util utils common helpers base models types impl")
	hasCode, docs := map[string]bool{}, map[string][]string{}
	for _, name := range tr.names(false) {
		hasCode[path.Dir(name)] = true
	}
	var problems []string
	for _, name := range tr.names(true) {
		folder, file := path.Dir(name), tr.goes[name]
		pkg := file.Name.Name
		if strings.HasSuffix(pkg, "_test") || isTest(name) && hasCode[folder] {
			if file.Doc != nil && hasCode[folder] {
				problems = append(problems, name+": the package comment belongs in a file that is not a test")
			}
			continue
		}
		if file.Doc != nil {
			docs[folder] = append(docs[folder], name)
		} else if _, known := docs[folder]; !known {
			docs[folder] = nil
		}
		if pkg == "main" && folder != "." {
			problems = append(problems, name+": main.go is the only package main")
		}
		if slices.Contains(catchAll, pkg) {
			problems = append(problems, name+": package "+pkg+" says nothing; name what it holds")
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(docs)) {
		if n := len(docs[folder]); n != 1 {
			problems = append(problems, fmt.Sprintf("%s: %d package comments, want exactly one: %s", folder, n, strings.Join(docs[folder], " ")))
		}
	}
	return problems
}

func TestPackages(t *testing.T) {
	t.Parallel()
	check(t, packages, broken{
		files: map[string]string{
			"main.go":        "// Command x is one.\npackage main",
			"a/a.go":         "// Package a is one.\npackage a",
			"a/b.go":         "// Package a is another.\npackage a",
			"b/b.go":         "package b",
			"c/c.go":         "// Package c is one.\npackage c",
			"c/c_test.go":    "// Package c again.\npackage c",
			"d/d_test.go":    "// Package d holds tests only.\npackage d",
			"e/util/util.go": "// Package util is everything.\npackage util",
			"e/x/x.go":       "// Command x is another.\npackage main",
		},
		want: []string{
			"c/c_test.go: the package comment",
			"e/util/util.go: package util says nothing",
			"e/x/x.go: main.go is the only package main",
			"a: 2 package comments",
			"b: 0 package comments",
		},
	})
}

// pure checks the packages that know no outside world: no I/O, no clock, no goroutine.
func pure(tr *tree) []string {
	folders := []string{"ledger", "ledger/event", "ledger/keys", "ledger/policy", "ledger/price"}
	outside := strings.Fields("os os/exec os/signal net net/http database/sql log log/slog syscall context")
	clock := strings.Fields("Now Since Until Sleep After AfterFunc Tick NewTimer NewTicker")
	var problems []string
	for _, name := range tr.names(false) {
		if !slices.Contains(folders, path.Dir(name)) {
			continue
		}
		for _, imported := range tr.imports(name) {
			if slices.Contains(outside, imported) {
				problems = append(problems, name+": a pure package does not import "+imported)
			}
		}
		ast.Inspect(tr.goes[name], func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.GoStmt:
				problems = append(problems, tr.at(n.Pos())+": a pure package starts no goroutine")
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
					problems = append(problems, tr.at(n.Pos())+": a pure package is handed its time, it does not call time."+n.Sel.Name)
				}
			}
			return true
		})
	}
	return problems
}

func TestPure(t *testing.T) {
	t.Parallel()
	check(t, pure, broken{
		files: map[string]string{
			"ledger/a.go": "package ledger\nimport \"os\"\nimport \"time\"\nfunc f() {\n_ = time.Now()\ngo f()\nos.Exit(1)\n}",
			"lua/a.go":    "package lua\nimport \"os\"",
		},
		want: []string{"ledger/a.go: a pure package does not import os", "ledger/a.go:5: ", "ledger/a.go:6: "},
	})
}
