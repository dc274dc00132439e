// Package keys defines how an API key is known: by the hash of its secret, in Postgres and in the directory (a NATS KV
// bucket) that every gateway follows. The secret itself is shown once, when the key is made, and kept nowhere.
package keys

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// Bucket is the NATS KV bucket of the directory. An entry's key is the hash of the secret, its value a Record.
const Bucket = "TOLLGATE_KEYS"

// Prefix begins every secret, so that a leaked one can be found by scanners.
const Prefix = "tg-"

// Record is what a gateway knows of a key. Keys are never removed from the directory: a revoked one is refused by name.
type Record struct {
	KeyID       string    `json:"key_id"`
	App         string    `json:"app"`
	User        string    `json:"user,omitempty"` // the key acts for this end user, whatever the body says
	Plan        string    `json:"plan,omitempty"` // before the app's
	AppPlan     string    `json:"app_plan,omitempty"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	Revoked     bool      `json:"revoked,omitempty"`
	AppDisabled bool      `json:"app_disabled,omitempty"`
}

// Encode renders the record as JSON.
func (r Record) Encode() ([]byte, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode key %s: %w", r.KeyID, err)
	}
	return data, nil
}

// Decode reads a record; it errors when the key or its app has no name.
func Decode(data []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("decode key record: %w", err)
	}
	if r.KeyID == "" || r.App == "" {
		return Record{}, fmt.Errorf("key record without key or app: %.80s", data)
	}
	return r, nil
}

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func random(n int) string {
	var b strings.Builder
	for range n {
		i, err := rand.Int(rand.Reader, big.NewInt(int64(len(alphabet))))
		if err != nil {
			panic(err) // crypto/rand never fails
		}
		b.WriteByte(alphabet[i.Int64()])
	}
	return b.String()
}

// NewSecret makes a secret of 256 bits.
func NewSecret() string { return Prefix + random(43) }

// NewID makes the public id of a key.
func NewID() string { return "k_" + random(12) }

// Hash is the hexadecimal SHA-256 of a secret. A secret is random, so nothing slower is needed.
func Hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
