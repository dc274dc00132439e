package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const postgresBinEnv = "TOLLGATE_POSTGRES_BIN"

// postgresFolders are where systems put Postgres when they keep it out of PATH: Debian, Red Hat, Alpine, Homebrew, Postgres.app
// and a build from source.
var postgresFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin",
}

// postgresBinaries returns the folder of a Postgres that can read data of version written ("": any). What the user names comes
// first, then the newest found, then a download.
func postgresBinaries(ctx context.Context, cacheDir, cluster, written string) (string, error) {
	if dir := os.Getenv(postgresBinEnv); dir != "" {
		version, err := postgresVersion(ctx, dir)
		if err != nil {
			return "", fmt.Errorf("%s=%s: %w", postgresBinEnv, dir, err)
		}
		if written != "" && major(version) != written {
			return "", &VersionError{Dir: cluster, Data: written, Found: version}
		}
		return dir, nil
	}
	found := ""
	for _, dir := range installedPostgres(ctx) {
		version, err := postgresVersion(ctx, dir)
		if err != nil {
			continue // A broken or partial installation; another may do.
		}
		if written == "" || major(version) == written {
			return dir, nil
		}
		found = version
	}
	// A question that was cut short says nothing about the installation.
	if ctx.Err() != nil {
		return "", fmt.Errorf("look for postgres: %w", context.Cause(ctx))
	}
	if found != "" {
		// A download could not read the data either, unless it happens to be of that version.
		if dir, err := cachedPostgres(ctx, cacheDir, written); err == nil {
			return dir, nil
		}
		return "", &VersionError{Dir: cluster, Data: written, Found: found}
	}
	return downloadPostgres(ctx, cacheDir, cluster, written)
}

// installedPostgres lists the folders that may hold Postgres, the best first.
func installedPostgres(ctx context.Context) []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// initdb lies beside the real file, not always beside the link to it.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	var system []string
	for _, pattern := range postgresFolders {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			panic(fmt.Sprintf("bad pattern %q: %v", pattern, err))
		}
		system = append(system, matches...)
	}
	slices.SortStableFunc(system, func(a, b string) int { return versionIn(b) - versionIn(a) })
	return append(dirs, system...)
}

// versionIn is the first number in a path, 0 without one: /usr/lib/postgresql/16/bin is 16.
func versionIn(path string) int {
	digits := strings.FieldsFunc(path, func(r rune) bool { return r < '0' || r > '9' })
	if len(digits) == 0 {
		return 0
	}
	n, err := strconv.Atoi(digits[0])
	if err != nil {
		return 0
	}
	return n
}

// postgresVersion asks the server in a folder for its version, such as 15.8, and checks that initdb lies beside it.
func postgresVersion(ctx context.Context, dir string) (string, error) {
	if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("postgres --version: %w", err)
	}
	// postgres (PostgreSQL) 15.8 (Debian 15.8-1)
	fields := strings.Fields(string(out))
	if len(fields) < 3 || fields[1] != "(PostgreSQL)" {
		return "", errors.New("postgres --version: unknown answer " + strconv.Quote(string(out)))
	}
	return fields[2], nil
}

// major is the part of a version that decides whether data can be read: 15 of 15.8, 16 of 16beta1.
func major(version string) string {
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return version
	}
	return version[:end]
}
