package services

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// withoutPostgres hides every Postgres of this machine and returns the folder of the one it would have used.
func withoutPostgres(t *testing.T) string {
	t.Helper()
	bin, err := postgresBinaries(t.Context(), t.TempDir(), "", "")
	require.NoError(t, err)
	folders := postgresFolders
	postgresFolders = nil
	t.Cleanup(func() { postgresFolders = folders })
	t.Setenv("PATH", t.TempDir())
	t.Setenv(postgresBinEnv, "")
	// The library leaves an empty log file in the temporary folder.
	t.Setenv("TMPDIR", t.TempDir())
	return bin
}

// repository serves archive as every Postgres there is.
func repository(t *testing.T, archive []byte, sum string) (requests *atomic.Int64) {
	t.Helper()
	requests = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		body := archive
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			body = []byte(sum)
		} else if !strings.Contains(r.URL.Path, "-"+runtime.GOOS+"-") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, err := w.Write(body)
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	}))
	t.Cleanup(func() {
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	t.Setenv(postgresRepositoryEnv, server.URL+"/")
	return requests
}

// postgresJar packs links to an installed Postgres as the repository packs the programs themselves: a zip that holds a .txz.
func postgresJar(t *testing.T, bin string) (jar []byte, sum string) {
	t.Helper()
	var packed bytes.Buffer
	files := tar.NewWriter(&packed)
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		require.NoError(t, files.WriteHeader(&tar.Header{
			Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: filepath.Join(bin, name), Mode: 0o777,
		}))
	}
	require.NoError(t, files.Close())
	var zipped bytes.Buffer
	archive := zip.NewWriter(&zipped)
	entry, err := archive.Create("postgres.txz")
	require.NoError(t, err)
	_, err = entry.Write(xzStored(packed.Bytes()))
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	hash := sha256.Sum256(zipped.Bytes())
	return zipped.Bytes(), hex.EncodeToString(hash[:])
}

// xzStored wraps up to 64 KiB in the .xz format without compressing, which the standard library cannot do at all.
// https://tukaani.org/xz/xz-file-format.txt
func xzStored(data []byte) []byte {
	checked := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }
	pad := func(b []byte) []byte {
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		return b
	}
	flags := []byte{0, 1} // checksum: CRC32

	header := append([]byte("\xfd7zXZ\x00"), flags...)
	header = binary.LittleEndian.AppendUint32(header, crc32.ChecksumIEEE(flags))
	// Block header: its size in words less one, one filter, LZMA2 (0x21) with one byte of properties (dictionary size).
	block := checked([]byte{2, 0, 0x21, 1, 8, 0, 0, 0})
	// One uncompressed chunk that resets the dictionary, then the end marker.
	block = append(block, 1, byte((len(data)-1)>>8), byte(len(data)-1))
	block = append(append(block, data...), 0)
	unpadded := len(block) + 4
	block = binary.LittleEndian.AppendUint32(pad(block), crc32.ChecksumIEEE(data))
	// Index: one record.
	index := binary.AppendUvarint([]byte{0, 1}, uint64(unpadded))
	index = checked(pad(binary.AppendUvarint(index, uint64(len(data)))))

	footer := binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1))
	footer = append(footer, flags...)
	footer = append(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(footer)), footer...)
	footer = append(footer, "YZ"...)
	return bytes.Join([][]byte{header, block, index, footer}, nil)
}

func TestPostgresIsDownloadedWhereNoneIsInstalled(t *testing.T) {
	jar, sum := postgresJar(t, withoutPostgres(t))
	requests := repository(t, jar, sum)
	cache, err := os.MkdirTemp("/tmp", "services-test-*")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(cache)) })
	require.NoError(t, os.Chmod(cache, 0o755))
	for range 2 {
		server, err := StartPostgres(t.Context(), PostgresConfig{DataDir: t.TempDir(), CacheDir: cache})
		require.NoError(t, err)
		require.NoError(t, server.Stop(t.Context()))
	}
	require.Equal(t, int64(2), requests.Load(), "one archive and its checksum, once")
	left, err := filepath.Glob(filepath.Join(cache, "download-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestProgramsThatPostgresMayNotReach(t *testing.T) {
	jar, sum := postgresJar(t, withoutPostgres(t))
	repository(t, jar, sum)
	// Only its owner may enter a test's temporary folder, and root's Postgres runs as another user.
	server, err := StartPostgres(t.Context(), PostgresConfig{DataDir: t.TempDir(), CacheDir: t.TempDir()})
	if os.Geteuid() == 0 {
		require.ErrorContains(t, err, "who may not enter")
		require.ErrorContains(t, err, postgresBinEnv)
		return
	}
	require.NoError(t, err)
	require.NoError(t, server.Stop(t.Context()))
}

func TestFailedDownloadNamesBothWaysOut(t *testing.T) {
	jar, _ := postgresJar(t, withoutPostgres(t))
	tests := map[string]struct {
		archive []byte
		sum     string
	}{
		"wrong checksum": {jar, strings.Repeat("0", 64)},
		"no archive":     {[]byte("<html>"), hexSum([]byte("<html>"))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			repository(t, tt.archive, tt.sum)
			_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: t.TempDir(), CacheDir: t.TempDir()})
			var none *NoPostgresError
			require.ErrorAs(t, err, &none)
			require.ErrorContains(t, err, "packages")
			require.ErrorContains(t, err, postgresBinEnv)
			require.ErrorContains(t, err, postgresRepositoryEnv)
		})
	}
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestHangingDownloadIsCancelled(t *testing.T) {
	withoutPostgres(t)
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Setenv(postgresRepositoryEnv, server.URL)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	cache := t.TempDir()
	_, err := StartPostgres(ctx, PostgresConfig{DataDir: t.TempDir(), CacheDir: cache})
	var none *NoPostgresError
	require.ErrorAs(t, err, &none)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// What goes on in the background cleans up after itself.
	close(release)
	require.Eventually(t, func() bool {
		left, err := filepath.Glob(filepath.Join(cache, "download-*"))
		return err == nil && len(left) == 0
	}, 2*time.Minute, 10*time.Millisecond)
	server.Close()
	http.DefaultClient.CloseIdleConnections()
}

func TestNamedPostgresThatIsNone(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(postgresBinEnv, dir)
	_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: t.TempDir()})
	require.ErrorContains(t, err, postgresBinEnv+"="+dir)
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"15.8": "15", "16beta1": "16", "9.6.24": "9", "18": "18"} {
		require.Equal(t, want, major(text))
	}
	for path, want := range map[string]int{
		"/usr/lib/postgresql/16/bin": 16, "/opt/homebrew/opt/postgresql@17/bin": 17, "/usr/local/pgsql/bin": 0,
	} {
		require.Equal(t, want, versionIn(path))
	}
}
