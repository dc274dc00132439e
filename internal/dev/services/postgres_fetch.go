package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// postgresRepositoryEnv names another repository of Postgres binaries than the library's own.
const postgresRepositoryEnv = "TOLLGATE_POSTGRES_REPOSITORY"

// downloadVersions are the versions on offer, by major version; the empty one is for new data.
var downloadVersions = map[string]embeddedpostgres.PostgresVersion{
	"":   embeddedpostgres.V17,
	"18": embeddedpostgres.V18,
	"17": embeddedpostgres.V17,
	"16": embeddedpostgres.V16,
	"15": embeddedpostgres.V15,
	"14": embeddedpostgres.V14,
}

// NoPostgresError is returned by StartPostgres when no Postgres is installed and none could be downloaded.
type NoPostgresError struct{ Err error }

func (e *NoPostgresError) Error() string {
	return fmt.Sprintf("no Postgres found, and downloading one did not work (%v): install it from your system's packages "+
		"(postgresql), or point %s to the folder that holds postgres and initdb; another source of binaries is set with %s",
		e.Err, postgresBinEnv, postgresRepositoryEnv)
}

func (e *NoPostgresError) Unwrap() error { return e.Err }

// cachedPostgres returns an earlier download that can read data of version written.
func cachedPostgres(ctx context.Context, cacheDir, written string) (string, error) {
	cacheDir, err := downloadCache(cacheDir)
	if err != nil {
		return "", err
	}
	version, ok := downloadVersions[written]
	if !ok {
		return "", fmt.Errorf("no download of Postgres %s", written)
	}
	bin := filepath.Join(cacheDir, string(version)+"-"+runtime.GOARCH, "bin")
	_, err = postgresVersion(ctx, bin)
	return bin, err
}

func downloadCache(dir string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	// Root's own cache folder is closed to the user that root's Postgres runs as.
	if os.Geteuid() == 0 {
		return "/var/cache/tollgate/postgres", nil
	}
	home, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	return filepath.Join(home, "tollgate", "postgres"), nil
}

// downloadPostgres returns the folder of a downloaded Postgres, from the cache where it is there already.
func downloadPostgres(ctx context.Context, cacheDir, cluster, written string) (string, error) {
	version, ok := downloadVersions[written]
	if !ok {
		return "", &VersionError{Dir: cluster, Data: written, Found: string(downloadVersions[""])}
	}
	if bin, err := cachedPostgres(ctx, cacheDir, written); err == nil {
		return bin, nil
	}
	bin, err := fetchPostgres(ctx, cacheDir, written, version)
	if err != nil {
		return "", &NoPostgresError{Err: err}
	}
	return bin, nil
}

func fetchPostgres(ctx context.Context, cacheDir, written string, version embeddedpostgres.PostgresVersion) (bin string, err error) {
	cacheDir, err = downloadCache(cacheDir)
	if err != nil {
		return "", err
	}
	lock, err := awaitDir(ctx, cacheDir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	// Whoever held the folder before may have fetched it.
	if bin, err := cachedPostgres(ctx, cacheDir, written); err == nil {
		return bin, nil
	}

	work, err := os.MkdirTemp(cacheDir, "download-*")
	if err != nil {
		return "", err
	}
	place := filepath.Join(cacheDir, string(version)+"-"+runtime.GOARCH)
	result := make(chan error, 1)
	go func() {
		err := extractPostgres(ctx, version, work, place)
		result <- errors.Join(err, os.RemoveAll(work))
	}()
	// The library knows no context: a cancelled download ends in the background.
	select {
	case err = <-result:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return filepath.Join(place, "bin"), err
}

// awaitDir locks a directory that others may hold for a while.
func awaitDir(ctx context.Context, dir string) (*dirLock, error) {
	tick := time.NewTicker(10 * pollEvery)
	defer tick.Stop()
	for {
		_, lock, err := openDir(dir)
		if !errors.Is(err, ErrDirInUse) {
			return lock, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// extractPostgres has the library download, check and unpack. The library offers no call for that alone: its Start goes on to
// run the server, which is kept from doing so by a data directory that holds nothing but a version. So Start always returns an
// error, and what was unpacked decides.
func extractPostgres(ctx context.Context, version embeddedpostgres.PostgresVersion, work, place string) error {
	decoy, unpacked := filepath.Join(work, "decoy"), filepath.Join(work, "postgres")
	if err := os.Mkdir(decoy, 0o700); err != nil {
		return err
	}
	text := []byte(major(string(version)) + "\n")
	if err := os.WriteFile(filepath.Join(decoy, "PG_VERSION"), text, 0o600); err != nil {
		return err
	}
	port, err := claimPort(0, "")
	if err != nil {
		return err
	}
	cfg := embeddedpostgres.DefaultConfig().Version(version).Port(uint32(port)).Logger(io.Discard).
		CachePath(filepath.Join(work, "archive")).RuntimePath(filepath.Join(work, "runtime")).
		BinariesPath(unpacked).DataPath(decoy)
	if url := os.Getenv(postgresRepositoryEnv); url != "" {
		cfg = cfg.BinaryRepositoryURL(strings.TrimSuffix(url, "/"))
	}
	server := embeddedpostgres.NewDatabase(cfg)
	startErr := server.Start()
	if startErr == nil {
		return errors.Join(errors.New("the downloaded Postgres started on an empty folder"), server.Stop())
	}
	if _, err := postgresVersion(ctx, filepath.Join(unpacked, "bin")); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return startErr
		}
		return fmt.Errorf("the downloaded Postgres does not run here: %w", err)
	}
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	return os.Rename(unpacked, place)
}
