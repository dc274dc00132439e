// Package policy reads the policy file, checks it strictly, and says which limits a request meets and what each counts.
//
// It is pure: [Parse] sees only the bytes handed in, an environment look-up and time zone data (the system's, else its own
// copy), [Policy.Match] only its arguments. A parsed Policy never changes, so any number of goroutines may use it.
//
// # Checking
//
// Parse reports every problem at once, each with line, column, field and what to do. An unknown field, a duplicate key, a
// value of the wrong type, a name that nothing defines and a number that cannot be meant are all problems: nothing in the
// file is ignored.
//
// Anchors, aliases, merge keys and explicit tags are refused, so a small file never grows large in memory; a file is at most
// [MaxSize] bytes.
//
// Values that are texts may contain ${NAME}, which Parse replaces from the environment after the YAML was read, so a value
// can never add structure. "$$" stands for one "$". Keys and numbers are never replaced.
//
// Where the file is silent: time zone UTC, weeks from Monday, plan [DefaultPlan], action reject, a rate is a sliding_log (so
// no window ever holds more than the amount), a bucket's burst is its amount, on_disconnect is cancel; the fields of
// [Degraded] and [Reservations] say their own.
//
// # Subjects
//
// A limit has one counter for each subject of its tier, split further by its dimensions ("by") and told apart from limits
// on other traffic by what it matches:
//
//	family   key[endpoint,model]?plan=free
//	subject  key:k_7f[endpoint=chat,model=gpt-4o]?plan=free
//
// The subjects of the tiers are platform:all, cluster:all, provider:openai, plan:paid, app:checkout, key:k_7f,
// user:checkout/alice, endpoint:/v1/chat/completions and ip:192.0.2.7 (of IPv6 the network of 64 bits). Dimensions, and
// conditions after "?", are sorted.
//
//   - Two different names never give one subject. Within a name the bytes "[ ] ? , = : { } % ~", control characters, space
//     and everything outside ASCII are written %XX. A name longer than 128 bytes is written %sha256- and its digest, which no
//     escaped name can spell because an escape is always two hexadecimal digits.
//   - A user belongs to an app: user:<app>/<user>, with "/" in either part written %2F.
//   - A request without a user is counted by its key, user:<app>/~<key>: nameless callers never share one counter.
//   - A request without a plan has the plan [DefaultPlan].
//   - Any other empty name is written %-, a subject of its own.
//   - The endpoint tier counts by path; the dimension endpoint by kind (chat, embeddings, …), else by path.
//   - In limits of the provider tier a model is the upstream model, the one the provider meters, so that two names for it
//     share what the provider allows. Everywhere else it is the name the caller asked for.
//
// # Not guaranteed here
//
// Nothing here counts. Whether an amount fits is decided by the reserve script in package lua, and a Policy knows nothing of
// the apps and keys that exist: an override for a name that is never used is no error.
package policy
