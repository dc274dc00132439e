package ledger

// Usage is the tokens of one provider answer, normalised to classes that never overlap: a token is counted in exactly one
// field, whatever the provider's own fields include. Per-call tools are counted apart because they are no tokens.
type Usage struct {
	Input        Tokens `json:"input,omitempty"`          // text input, neither cached nor written to a cache
	CachedInput  Tokens `json:"cached_input,omitempty"`   // read from the provider's cache
	CacheWrite5m Tokens `json:"cache_write_5m,omitempty"` // written to a cache that lives five minutes, or the provider's default
	CacheWrite1h Tokens `json:"cache_write_1h,omitempty"` // written to a cache that lives an hour
	InputAudio   Tokens `json:"input_audio,omitempty"`
	InputImage   Tokens `json:"input_image,omitempty"`
	Output       Tokens `json:"output,omitempty"` // visible text
	Reasoning    Tokens `json:"reasoning,omitempty"`
	OutputAudio  Tokens `json:"output_audio,omitempty"`
	OutputImage  Tokens `json:"output_image,omitempty"`
}

// Class names one field of Usage in price rows, events and metrics.
type Class string

// The token classes, in the order of Usage's fields.
const (
	ClassInput        Class = "input"
	ClassCachedInput  Class = "cached_input"
	ClassCacheWrite5m Class = "cache_write_5m"
	ClassCacheWrite1h Class = "cache_write_1h"
	ClassInputAudio   Class = "input_audio"
	ClassInputImage   Class = "input_image"
	ClassOutput       Class = "output"
	ClassReasoning    Class = "reasoning"
	ClassOutputAudio  Class = "output_audio"
	ClassOutputImage  Class = "output_image"
)

// ClassUpperBound stands in a cost for all classes together, where one of them had no price: what was charged is the most
// that the answer could have cost.
const ClassUpperBound Class = "upper_bound"

// ClassTokens is one class with its count.
type ClassTokens struct {
	Class  Class
	Tokens Tokens
}

// Classes lists every class with its count, zeros included, in a fixed order.
func (u Usage) Classes() [10]ClassTokens {
	return [10]ClassTokens{
		{ClassInput, u.Input},
		{ClassCachedInput, u.CachedInput},
		{ClassCacheWrite5m, u.CacheWrite5m},
		{ClassCacheWrite1h, u.CacheWrite1h},
		{ClassInputAudio, u.InputAudio},
		{ClassInputImage, u.InputImage},
		{ClassOutput, u.Output},
		{ClassReasoning, u.Reasoning},
		{ClassOutputAudio, u.OutputAudio},
		{ClassOutputImage, u.OutputImage},
	}
}

// InputTotal is every token the caller sent, cached or not.
func (u Usage) InputTotal() Tokens {
	return u.Input + u.CachedInput + u.CacheWrite5m + u.CacheWrite1h + u.InputAudio + u.InputImage
}

// OutputTotal is every token the model made, reasoning included.
func (u Usage) OutputTotal() Tokens {
	return u.Output + u.Reasoning + u.OutputAudio + u.OutputImage
}

// Total is InputTotal + OutputTotal.
func (u Usage) Total() Tokens { return u.InputTotal() + u.OutputTotal() }

// Negative reports whether any class is below zero, which no provider can mean.
func (u Usage) Negative() bool {
	for _, c := range u.Classes() {
		if c.Tokens < 0 {
			return true
		}
	}
	return false
}

// UsageState says where a usage came from.
type UsageState string

// The usage states. Zero and absent are different: a provider that says 0 is believed, one that says nothing is estimated.
const (
	UsageReported     UsageState = "reported"     // the provider said so
	UsageReportedZero UsageState = "zero"         // the provider said explicitly that nothing was used
	UsageEstimated    UsageState = "estimated"    // the provider said nothing; our estimate stands in
	UsageInconsistent UsageState = "inconsistent" // the provider's parts do not sum to its total; the larger reading was charged
	UsageUnconfirmed  UsageState = "unconfirmed"  // the outcome never arrived; the held estimate was charged by expiry
)
