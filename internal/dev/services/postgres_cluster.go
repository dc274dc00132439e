package services

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"tollgate/internal/dev/services/child"
)

const initdbLimit = 2 * time.Minute

// VersionError is returned by StartPostgres when no Postgres found can read the data that is there.
type VersionError struct {
	Dir   string
	Data  string // major version that wrote the data
	Found string // version of the server found
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s was written by Postgres %s, but Postgres %s was found: install Postgres %s, or point %s to it, or choose another data directory",
		e.Dir, e.Data, e.Found, e.Data, postgresBinEnv)
}

// prepare finds the user and the binaries to run, and makes the cluster on first use.
func (p *Postgres) prepare(ctx context.Context) error {
	var err error
	if p.runAs, err = postgresCredential(p.cluster); err != nil {
		return err
	}
	written, err := clusterVersion(p.cluster)
	if err != nil {
		return err
	}
	if p.binaries, err = postgresBinaries(ctx, p.cfg.CacheDir, p.cluster, written); err != nil {
		return err
	}
	if err := p.checkReach(); err != nil {
		return err
	}
	if p.password, err = clusterPassword(p.cfg.DataDir, written != ""); err != nil {
		return err
	}
	if written == "" {
		return p.initCluster(ctx)
	}
	return nil
}

// checkReach finds out whether the user that Postgres runs as may enter the folders it needs. Postgres insists on finding its
// programs without special rights; its data it may be given them for.
func (p *Postgres) checkReach() error {
	if p.runAs == nil {
		return nil
	}
	if !mayEnter(p.binaries, *p.runAs) {
		return fmt.Errorf("postgres runs as user %d, who may not enter %s, where its programs are: open that folder and those above it, or point %s to another",
			p.runAs.UID, p.binaries, postgresBinEnv)
	}
	p.reachAll = !mayEnter(p.cfg.DataDir, *p.runAs)
	if p.reachAll && !child.CanReachAll() {
		return fmt.Errorf("postgres runs as user %d, who may not enter %s: open that folder and those above it, or choose another data directory",
			p.runAs.UID, p.cfg.DataDir)
	}
	return nil
}

// initCluster runs initdb beside the final place and renames, so that a cluster is there whole or not at all.
func (p *Postgres) initCluster(ctx context.Context) (err error) {
	fresh := p.cluster + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("postgres: remove what an interrupted start left: %w", err)
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	secret, err := os.CreateTemp(p.cfg.DataDir, ".initdb-*")
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(secret.Name())) }()
	_, err = secret.WriteString(p.password + "\n")
	if err = errors.Join(err, secret.Close()); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	if p.runAs != nil {
		for _, path := range []string{fresh, secret.Name()} {
			if err := os.Chown(path, int(p.runAs.UID), int(p.runAs.GID)); err != nil {
				return fmt.Errorf("postgres: %w", err)
			}
		}
	}
	args := []string{
		"-D", fresh, "-U", postgresUser, "--pwfile=" + secret.Name(), "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
	}
	if !p.cfg.Fsync {
		args = append(args, "--no-sync")
	}
	if err := p.initdb(ctx, args); err != nil {
		return err
	}
	if err := os.Rename(fresh, p.cluster); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

func (p *Postgres) initdb(ctx context.Context, args []string) error {
	proc, err := p.spawn(filepath.Join(p.binaries, "initdb"), args, "initdb.log", syscall.SIGKILL)
	if err != nil {
		return err
	}
	timer := time.NewTimer(initdbLimit)
	defer timer.Stop()
	fail := func(err error) error {
		return &StartError{Service: "postgres", Log: proc.LogTail(logLines), Err: fmt.Errorf("initdb: %w", err)}
	}
	select {
	case <-proc.Done():
		if err := proc.Err(); err != nil {
			return fail(err)
		}
		return nil
	case <-timer.C:
		return fail(errors.Join(fmt.Errorf("not ready after %v", initdbLimit), proc.Kill()))
	case <-ctx.Done():
		return fail(errors.Join(context.Cause(ctx), proc.Kill()))
	}
}

// postgresCredential is the user to run Postgres as: nil for this process's own, else, for root, the owner of the cluster.
func postgresCredential(cluster string) (*child.Credential, error) {
	info, err := os.Stat(cluster)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	self := os.Geteuid()
	if err == nil {
		owner := info.Sys().(*syscall.Stat_t)
		switch {
		case self == 0 && owner.Uid != 0:
			return &child.Credential{UID: owner.Uid, GID: owner.Gid}, nil
		case self != int(owner.Uid):
			return nil, fmt.Errorf("postgres: %s belongs to user %d, not to user %d: run as that user or as root, or choose another data directory",
				cluster, owner.Uid, self)
		}
	}
	if self != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue // Not every system has both.
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &child.Credential{UID: uint32(uid), GID: uint32(gid)}, nil
	}
	return nil, errors.New("postgres refuses to run as root, and there is neither a user postgres nor a user nobody to run it as")
}

// mayEnter tells whether a user may enter dir and every folder above it, by mode bits alone.
func mayEnter(dir string, as child.Credential) bool {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(resolved)
		if err != nil {
			return false
		}
		owner, mode := info.Sys().(*syscall.Stat_t), info.Mode().Perm()
		allowed := mode&0o001 != 0
		if owner.Uid == as.UID {
			allowed = mode&0o100 != 0
		} else if owner.Gid == as.GID {
			allowed = mode&0o010 != 0
		}
		if !allowed {
			return false
		}
		above := filepath.Dir(resolved)
		if above == resolved {
			return true
		}
		resolved = above
	}
}

// clusterVersion is the major version that wrote a cluster, "" where there is none yet.
func clusterVersion(cluster string) (string, error) {
	text, err := os.ReadFile(filepath.Join(cluster, "PG_VERSION"))
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("postgres: %w", err)
	}
	// Whatever is there without a version was not made by initCluster; it is not ours to overwrite.
	if _, err := os.Stat(cluster); !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("postgres: %s holds no database cluster: move it away, or choose another data directory", cluster)
	}
	return "", nil
}

// clusterPassword reads the superuser's password, or makes one for a new cluster.
func clusterPassword(dir string, exists bool) (string, error) {
	path := filepath.Join(dir, "password")
	text, err := os.ReadFile(path)
	switch {
	case err == nil && len(text) > 0:
		return strings.TrimSpace(string(text)), nil
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("postgres: %w", err)
	case exists:
		return "", fmt.Errorf("postgres: %s is missing or empty, and without it the data beside it cannot be opened", path)
	}
	password := rand.Text()
	if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("postgres: %w", err)
	}
	return password, nil
}

// clearStaleLock looks at the lock file that a server leaves when it is killed. It waits for a server that is still ending, and
// removes the file if its process id now belongs to another program, which Postgres itself would take for a running server.
func clearStaleLock(ctx context.Context, cluster string) (stale bool, err error) {
	path := filepath.Join(cluster, "postmaster.pid")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("postgres: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 0 {
		return true, os.Remove(path) // Cut short by a crash.
	}
	ctx, cancel := context.WithTimeout(ctx, orphanLimit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for runsPostgres(pid, cluster) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return true, fmt.Errorf("postgres: %s is in use by process %d: stop that one first (kill -INT %d)", cluster, pid, pid)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, fmt.Errorf("postgres: %w", err)
	}
	return true, nil
}

// runsPostgres tells whether process pid is a Postgres server on cluster.
func runsPostgres(pid int, cluster string) bool {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
		if !strings.HasPrefix(string(name), "postgres") && !strings.HasPrefix(string(name), "postmaster") {
			return false
		}
		// A server's working directory is its cluster.
		if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil {
			resolved, err := filepath.EvalSymlinks(cluster)
			return err != nil || cwd == resolved
		}
		return true
	}
	out, err := exec.Command("ps", "-p", strconv.Itoa(pid), "-o", "comm=").Output()
	return err == nil && strings.Contains(string(out), "postgres")
}

// postgresEnv keeps the caller's PG* variables from steering the server.
func postgresEnv() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func isDuplicateDatabase(err error) bool {
	var pgErr *pgconn.PgError
	const duplicateDatabase = "42P04"
	return errors.As(err, &pgErr) && pgErr.Code == duplicateDatabase
}
