package policy

import (
	"crypto/sha256"
	"encoding/hex"
)

// Where a pushed policy lives: one entry of a NATS KV bucket, whose history is the policy's. Prices that were published over the
// built-in book are another.
const (
	Bucket    = "TOLLGATE_POLICY"
	BucketKey = "policy"
	PricesKey = "prices"
)

// RevisionOf names the content of a policy file: the first 12 hexadecimal digits of its SHA-256.
func RevisionOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:12]
}
