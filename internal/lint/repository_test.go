// Package lint holds the repository to its own rules, as tests: who may import whom, how long files and functions may be,
// what tests and scripts must say, and that the files for production (docker-compose.yml, Dockerfile) keep their promises.
//
// A rule is a function from a source tree to the problems it finds. Each is run on the repository, where it must find
// nothing, and on a small tree written to break it, where it must.
package lint

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{}) }

// module is the path that imports of our own packages begin with.
const module = "tollgate"

// tree is a set of source files. Paths are relative to its root, with slashes.
type tree struct {
	root  string // of the checkout; "" for a tree that is not on disk
	texts map[string][]byte
	fset  *token.FileSet
	goes  map[string]*ast.File
}

// newTree parses the Go files among texts.
func newTree(root string, texts map[string][]byte) (*tree, error) {
	tr := &tree{root: root, texts: texts, fset: token.NewFileSet(), goes: map[string]*ast.File{}}
	for name, text := range texts {
		if path.Ext(name) != ".go" {
			continue
		}
		file, err := parser.ParseFile(tr.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		tr.goes[name] = file
	}
	return tr, nil
}

// at renders a position as file:line.
func (tr *tree) at(pos token.Pos) string {
	p := tr.fset.Position(pos)
	return p.Filename + ":" + strconv.Itoa(p.Line)
}

// names lists the Go files in order; tests says whether test files are wanted.
func (tr *tree) names(tests bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(tr.goes)), func(name string) bool {
		return isTest(name) && !tests
	})
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// imports lists the imports of a file.
func (tr *tree) imports(name string) []string {
	var paths []string
	for _, spec := range tr.goes[name].Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, "`\""))
	}
	return paths
}

// own returns the folder of a package of ours: "." for the root, ok=false for anybody else's package.
func own(importPath string) (folder string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// load reads every file that is, or could be, committed.
var load = sync.OnceValues(func() (*tree, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return nil, err
	}
	// The checkout may belong to another user; it is only read.
	cmd := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	texts := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed so
		}
		if err != nil {
			return nil, err
		}
		texts[name] = text
	}
	return newTree(root, texts)
})

func repository(t *testing.T) *tree {
	t.Helper()
	tr, err := load()
	require.NoError(t, err)
	require.Contains(t, tr.texts, "go.mod")
	return tr
}

// rule finds problems, each as "place: what is wrong".
type rule func(*tree) []string

// broken is a small tree that breaks a rule, and the places where the rule must find it.
type broken struct {
	files map[string]string
	want  []string // the beginnings of the problems, in order
}

// check runs a rule on the repository and on a tree that breaks it.
func check(t *testing.T, find rule, b broken) {
	t.Helper()
	texts := map[string][]byte{}
	for name, text := range b.files {
		texts[name] = []byte(text)
	}
	tr, err := newTree("", texts)
	require.NoError(t, err)
	found := find(tr)
	require.Len(t, found, len(b.want), "the rule does not find what it should:\n%s", strings.Join(found, "\n"))
	for i, want := range b.want {
		require.True(t, strings.HasPrefix(found[i], want), "found %q, want %q", found[i], want)
	}

	if problems := find(repository(t)); len(problems) > 0 {
		t.Errorf("%d problems:\n%s", len(problems), strings.Join(problems, "\n"))
	}
}

// lines counts the lines of a text.
func lines(text []byte) int {
	n := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return n
}
