package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// nameBytes are the bytes of the names of apps and limits, which become parts of message subjects, keys and headers.
const nameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// maxOwnName is the longest name, in bytes, that the policy itself gives: of an app, plan, provider, model or limit.
const maxOwnName = 128

// CheckApp says whether name can be an app's. It becomes part of message subjects and keys, so only ASCII letters, digits,
// "_" and "-" are allowed, and "shared" is taken by the counters that all apps share.
func CheckApp(name string) error {
	switch {
	case name == "":
		return errors.New("an app needs a name")
	case len(name) > maxOwnName:
		return fmt.Errorf("app name %s is longer than %d bytes", quote(name), maxOwnName)
	case strings.Trim(name, nameBytes) != "":
		return fmt.Errorf("app name %s: use letters, digits, _ and - only", quote(name))
	case name == "shared":
		return errors.New(`app name "shared" is reserved: use another`)
	}
	return nil
}

// ownName checks a name that the policy itself gives.
func (v value) ownName(name string) {
	if len(name) > maxOwnName {
		v.fail("the name is longer than %d bytes: shorten it", maxOwnName)
	}
	if strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		v.fail("the name contains a control character: remove it")
	}
}

func (f *file) providers(top record) {
	f.policy.Providers = make(map[string]*Provider)
	if v, ok := top.get("providers"); ok {
		for _, e := range v.entries() {
			e.key.ownName(e.name)
			f.policy.Providers[e.name] = f.provider(e)
		}
	}
	f.providerNames = sorted(f.policy.Providers)
	keys := make(map[string]bool)
	for _, p := range f.policy.Providers {
		for _, key := range p.Keys {
			if key.Name != "" { // which has been reported
				keys[key.Name] = true
			}
		}
	}
	f.providerKeyNames = sorted(keys)
}

func (f *file) provider(e entry) *Provider {
	p := &Provider{Name: e.name, OnDisconnect: OnDisconnectCancel, Retries: defaultRetries, Line: e.key.node.Line}
	rec := e.record("protocol", "base_url", "api_key_env", "api_key_file", "keys", "retries", "on_disconnect", "api", "api_version")
	if v, ok := rec.require("protocol", "give openai, anthropic or gemini"); ok {
		p.Protocol, _ = choice(v, "protocol", ProtocolOpenAI, ProtocolAnthropic, ProtocolGemini)
	}
	if v, ok := rec.require("base_url", "give the address that the API's paths follow, e.g. https://api.openai.com/v1"); ok {
		p.BaseURL = v.baseURL()
	}
	p.readKeys(rec)
	if v, ok := rec.get("retries"); ok {
		n, _ := v.count("retries", 0, maxRetries)
		p.Retries = int(n)
	}
	if v, ok := rec.get("on_disconnect"); ok {
		p.OnDisconnect, _ = choice(v, "answer to a disconnect", OnDisconnectCancel, OnDisconnectDrain)
	}
	p.readAPI(rec)
	return p
}

func (p *Provider) readAPI(rec record) {
	if api := API(p.Name); p.Protocol == ProtocolOpenAI && (api == APIAzure || api == APIMistral) {
		p.API = api
	}
	if v, ok := rec.get("api"); ok {
		p.API, _ = choice(v, "API", APIAzure, APIMistral)
		if p.Protocol != ProtocolOpenAI {
			v.fail("only a provider with protocol openai has one: remove it")
		}
	}
	if v, ok := rec.get("api_version"); ok {
		p.APIVersion, _ = v.text()
		if p.API != APIAzure {
			v.fail("only api azure has versions: remove it")
		}
	}
}

func (v value) baseURL() string {
	text, ok := v.text()
	if !ok {
		return ""
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		v.fail("is not a web address: write one such as https://api.openai.com/v1")
	case u.User != nil:
		v.fail("contains a user name or password: give the key with api_key_env or api_key_file")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		v.fail("contains a query or fragment: end the address with its path")
	}
	return strings.TrimRight(text, "/")
}

// knownProvider reports a provider that is not declared.
func (f *file) knownProvider(v value, name string) bool {
	if f.policy.Providers[name] == nil {
		v.fail("unknown provider %s; %s", quote(name), f.r.choices(name, f.providerNames))
		return false
	}
	return true
}

func (f *file) models(top record) {
	f.policy.Models = make(map[string]*Model)
	f.upstreams = make(map[string]bool)
	named := make(map[*Model]value) // where a model's upstream model stands
	if v, ok := top.get("models"); ok {
		for _, e := range v.entries() {
			e.key.ownName(e.name)
			m := &Model{Name: e.name, Upstream: e.name, Line: e.key.node.Line}
			rec := e.record("provider", "upstream_model")
			if v, ok := rec.require("provider", "name the provider that serves the model"); ok {
				if name, ok := v.text(); ok && f.knownProvider(v, name) {
					m.Provider = name
				}
			}
			if v, ok := rec.get("upstream_model"); ok {
				name, _ := v.text()
				v.ownName(name)
				m.Upstream, named[m] = cmp.Or(name, m.Name), v
			}
			f.policy.Models[e.name], f.upstreams[m.Upstream] = m, true
		}
	}
	f.refuseChains(named)
	f.modelNames, f.upstreamNames = sorted(f.policy.Models), sorted(f.upstreams)
	if len(f.policy.Models) == 0 {
		top.warn("no models are declared: every request is refused, because callers may only ask for those")
	}
}

// refuseChains reports an alias of an alias: the provider is asked for the upstream model as it stands, and would not know it.
func (f *file) refuseChains(named map[*Model]value) {
	for m, v := range named {
		next := f.policy.Models[m.Upstream]
		if next != nil && next != m && next.Provider == m.Provider && next.Upstream != next.Name {
			v.fail("%s is an alias itself, and aliases do not follow each other: name the provider's own model, %s", quote(next.Name), quote(next.Upstream))
		}
	}
}

func (f *file) plans(top record) {
	f.policy.Plans = map[string]*Plan{DefaultPlan: {Name: DefaultPlan, OnExceed: OnExceed{Action: ActionReject}}}
	if v, ok := top.get("plans"); ok {
		for _, e := range v.entries() {
			e.key.ownName(e.name)
			plan := &Plan{Name: e.name, OnExceed: OnExceed{Action: ActionReject}, Line: e.key.node.Line}
			if v, ok := e.record("on_exceed").get("on_exceed"); ok {
				plan.OnExceed = v.onExceed()
			}
			f.policy.Plans[e.name] = plan
		}
	}
	f.planNames = sorted(f.policy.Plans)
}

// plan reports a plan that is not declared.
func (f *file) plan(v value, name string) bool {
	if f.policy.Plans[name] == nil {
		v.fail("unknown plan %s; %s", quote(name), f.r.choices(name, f.planNames))
		return false
	}
	return true
}

func (f *file) apps(top record) {
	f.policy.Apps = make(map[string]*App)
	v, ok := top.get("apps")
	if !ok {
		return
	}
	for _, e := range v.entries() {
		if err := CheckApp(e.name); err != nil {
			e.key.fail("%s", err)
		}
		app := &App{Name: e.name, Plan: DefaultPlan, Line: e.key.node.Line}
		rec := e.record("plan", "fallback")
		if v, ok := rec.get("plan"); ok {
			if name, ok := v.text(); ok && f.plan(v, name) {
				app.Plan = name
			}
		}
		if v, ok := rec.get("fallback"); ok {
			app.Fallback = f.fallback(v)
		}
		f.policy.Apps[e.name] = app
	}
}

func (f *file) fallback(v value) map[string]string {
	models := make(map[string]string)
	for _, e := range v.entries() {
		if f.policy.Models[e.name] == nil {
			e.key.warn("callers cannot ask for the model, so it never falls back; %s", f.r.choices(e.name, f.modelNames))
		}
		name, ok := e.text()
		switch {
		case !ok || !f.model(e.value, name, f.modelNames):
		case name == e.name:
			e.fail("a model cannot fall back to itself: name a cheaper one")
		default:
			models[e.name] = name
		}
	}
	return models
}

// model reports a model that is not among the sorted names.
func (f *file) model(v value, name string, names []string) bool {
	if !contains(names, name) {
		v.fail("unknown model %s; %s", quote(name), f.r.choices(name, names))
		return false
	}
	return true
}
