package policy

// later is what the grammar has and this version does not enforce yet, with what to do meanwhile. To support a thing is to
// enforce it and to delete its row.
var later = map[string]string{
	"protocol gemini": "remove the provider and its models",
}

// uses notes that the file asks for a feature.
func (v value) uses(feature string) {
	if advice, ok := later[feature]; ok {
		v.r.later = append(v.r.later, v.problem("%s is not enforced by this version: %s", feature, advice))
	}
}
