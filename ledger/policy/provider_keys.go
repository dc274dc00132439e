package policy

// DefaultKey is the name of a provider's key when the file gives one without a name.
const DefaultKey = "default"

const (
	// defaultRetries is small: the SDKs of callers try again by themselves, and each of ours multiplies each of theirs.
	defaultRetries = 1
	maxRetries     = 5
	maxWeight      = 100
)

// ProviderKey is one of the keys that a provider is asked with.
type ProviderKey struct {
	Name   string // in events, limits and metrics
	Env    string // name of the environment variable that holds the secret; at most one of Env and File is set
	File   string // path of the file that holds the secret
	Weight int    // its share of the requests in flight, from 1
	Line   int
}

// readKeys reads the keys, which are one without a name or a list of named ones.
func (p *Provider) readKeys(rec record) {
	list, ok := rec.get("keys")
	if !ok {
		key := ProviderKey{Name: DefaultKey, Weight: 1, Line: p.Line}
		key.readSecret(rec)
		p.Keys = []ProviderKey{key}
		return
	}
	for _, name := range []string{"api_key_env", "api_key_file"} {
		if v, ok := rec.get(name); ok {
			v.fail("keys are given too: put this key into their list")
		}
	}
	lines := make(map[string]int)
	for _, item := range list.items() {
		key := ProviderKey{Weight: 1, Line: item.node.Line}
		rec := item.record("name", "api_key_env", "api_key_file", "weight")
		if v, ok := rec.require("name", "events, limits and metrics name the key by it"); ok {
			key.Name, _ = v.text()
			v.ownName(key.Name)
			if line := lines[key.Name]; line > 0 {
				v.fail("the name %s is taken by the key in line %d: use another", quote(key.Name), line)
			}
			lines[key.Name] = key.Line
		}
		key.readSecret(rec)
		if rec.isMap() && key.Env == "" && key.File == "" {
			rec.fail("no key: give api_key_env or api_key_file")
		}
		for _, other := range p.Keys {
			if (key.Env != "" || key.File != "") && other.Env == key.Env && other.File == key.File {
				item.warn("the key %s has the same secret as %s, from the same place: what one is limited or refused, the other is too", quote(key.Name), quote(other.Name))
			}
		}
		if v, ok := rec.get("weight"); ok {
			n, _ := v.count("shares", 1, maxWeight)
			key.Weight = int(n)
		}
		p.Keys = append(p.Keys, key)
	}
	if len(p.Keys) == 0 {
		list.fail("no key is listed: give at least one, or leave keys out")
	}
}

// readSecret reads where the secret is.
func (k *ProviderKey) readSecret(rec record) {
	env, hasEnv := rec.get("api_key_env")
	path, hasFile := rec.get("api_key_file")
	if hasEnv {
		name, ok := env.text()
		if ok && !envName.MatchString(name) {
			// The text may be the key itself, put here by mistake: it is not repeated.
			env.fail("is not the name of an environment variable: name the variable that holds the key, never the key")
		}
		k.Env = name
	}
	if hasFile {
		k.File, _ = path.text()
	}
	if hasEnv && hasFile {
		path.fail("api_key_env is given too: keep one of the two")
	}
}
