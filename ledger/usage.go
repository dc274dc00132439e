package ledger

// Usage is what one provider answer used, normalised to classes that never overlap: a token is counted in exactly one field,
// whatever the provider's own fields include. What is billed by the call is counted apart, in Calls, because it is no tokens.
type Usage struct {
	Input            Tokens `json:"input,omitempty"`          // text input, neither cached nor written to a cache
	CachedInput      Tokens `json:"cached_input,omitempty"`   // read from the provider's cache: text, and what is not told apart
	CacheWrite5m     Tokens `json:"cache_write_5m,omitempty"` // written to a cache that lives five minutes, or the provider's default
	CacheWrite1h     Tokens `json:"cache_write_1h,omitempty"` // written to a cache that lives an hour
	InputAudio       Tokens `json:"input_audio,omitempty"`
	InputImage       Tokens `json:"input_image,omitempty"`
	InputVideo       Tokens `json:"input_video,omitempty"`
	CachedInputAudio Tokens `json:"cached_input_audio,omitempty"` // audio read from the provider's cache
	CachedInputImage Tokens `json:"cached_input_image,omitempty"` // images read from the provider's cache
	Output           Tokens `json:"output,omitempty"`             // visible text
	Reasoning        Tokens `json:"reasoning,omitempty"`
	OutputAudio      Tokens `json:"output_audio,omitempty"`
	OutputImage      Tokens `json:"output_image,omitempty"`
	OutputVideo      Tokens `json:"output_video,omitempty"`
	Calls            Calls  `json:"calls,omitzero"`
}

// Calls counts the tools that the provider ran for one answer and bills by the call, whatever they put into its tokens.
type Calls struct {
	WebSearch       int64 `json:"web_search,omitempty"`       // searches, as the provider counts them
	FileSearch      int64 `json:"file_search,omitempty"`      // queries to files stored with the provider
	CodeInterpreter int64 `json:"code_interpreter,omitempty"` // containers that ran code
}

// Class names one field of Usage, or of its Calls, in price rows, events and metrics.
type Class string

// The token classes, in the order of Usage's fields.
const (
	ClassInput            Class = "input"
	ClassCachedInput      Class = "cached_input"
	ClassCacheWrite5m     Class = "cache_write_5m"
	ClassCacheWrite1h     Class = "cache_write_1h"
	ClassInputAudio       Class = "input_audio"
	ClassInputImage       Class = "input_image"
	ClassInputVideo       Class = "input_video"
	ClassCachedInputAudio Class = "cached_input_audio"
	ClassCachedInputImage Class = "cached_input_image"
	ClassOutput           Class = "output"
	ClassReasoning        Class = "reasoning"
	ClassOutputAudio      Class = "output_audio"
	ClassOutputImage      Class = "output_image"
	ClassOutputVideo      Class = "output_video"
)

// The classes of Calls, in the order of its fields. They have calls, not tokens.
const (
	ClassWebSearch       Class = "web_search"
	ClassFileSearch      Class = "file_search"
	ClassCodeInterpreter Class = "code_interpreter"
)

// ClassUpperBound stands in a cost for all classes together, where one of them had no price: what was charged is the most
// that the answer could have cost.
const ClassUpperBound Class = "upper_bound"

// IsOutput reports whether the class is of tokens that the model made.
func (c Class) IsOutput() bool {
	switch c {
	case ClassOutput, ClassReasoning, ClassOutputAudio, ClassOutputImage, ClassOutputVideo:
		return true
	default:
		return false
	}
}

// ClassTokens is one class with its count.
type ClassTokens struct {
	Class  Class
	Tokens Tokens
}

// Classes lists every class of tokens with its count, zeros included, in a fixed order.
func (u Usage) Classes() [14]ClassTokens {
	return [14]ClassTokens{
		{ClassInput, u.Input},
		{ClassCachedInput, u.CachedInput},
		{ClassCacheWrite5m, u.CacheWrite5m},
		{ClassCacheWrite1h, u.CacheWrite1h},
		{ClassInputAudio, u.InputAudio},
		{ClassInputImage, u.InputImage},
		{ClassInputVideo, u.InputVideo},
		{ClassCachedInputAudio, u.CachedInputAudio},
		{ClassCachedInputImage, u.CachedInputImage},
		{ClassOutput, u.Output},
		{ClassReasoning, u.Reasoning},
		{ClassOutputAudio, u.OutputAudio},
		{ClassOutputImage, u.OutputImage},
		{ClassOutputVideo, u.OutputVideo},
	}
}

// ClassCalls is one class of calls with its count.
type ClassCalls struct {
	Class Class
	Calls int64
}

// Classes lists every class of calls with its count, zeros included, in a fixed order.
func (c Calls) Classes() [3]ClassCalls {
	return [3]ClassCalls{
		{ClassWebSearch, c.WebSearch},
		{ClassFileSearch, c.FileSearch},
		{ClassCodeInterpreter, c.CodeInterpreter},
	}
}

// InputTotal is every token the caller sent, cached or not.
func (u Usage) InputTotal() Tokens {
	total := Tokens(0)
	for _, c := range u.Classes() {
		if !c.Class.IsOutput() {
			total += c.Tokens
		}
	}
	return total
}

// OutputTotal is every token the model made, reasoning included.
func (u Usage) OutputTotal() Tokens {
	return u.Output + u.Reasoning + u.OutputAudio + u.OutputImage + u.OutputVideo
}

// Total is InputTotal + OutputTotal. Calls are no tokens and not in it.
func (u Usage) Total() Tokens { return u.InputTotal() + u.OutputTotal() }

// Plus adds two usages class by class. Figures of a provider's that sum past int64 are its fault, and the caller's to bound.
func (u Usage) Plus(o Usage) Usage {
	return Usage{
		Input: u.Input + o.Input, CachedInput: u.CachedInput + o.CachedInput,
		CacheWrite5m: u.CacheWrite5m + o.CacheWrite5m, CacheWrite1h: u.CacheWrite1h + o.CacheWrite1h,
		InputAudio: u.InputAudio + o.InputAudio, InputImage: u.InputImage + o.InputImage, InputVideo: u.InputVideo + o.InputVideo,
		CachedInputAudio: u.CachedInputAudio + o.CachedInputAudio, CachedInputImage: u.CachedInputImage + o.CachedInputImage,
		Output: u.Output + o.Output, Reasoning: u.Reasoning + o.Reasoning,
		OutputAudio: u.OutputAudio + o.OutputAudio, OutputImage: u.OutputImage + o.OutputImage, OutputVideo: u.OutputVideo + o.OutputVideo,
		Calls: Calls{
			WebSearch: u.Calls.WebSearch + o.Calls.WebSearch, FileSearch: u.Calls.FileSearch + o.Calls.FileSearch,
			CodeInterpreter: u.Calls.CodeInterpreter + o.Calls.CodeInterpreter,
		},
	}
}

// ModelUsage is what another model used for an answer than the one that gave it: one that was asked for advice, that drew the
// images, or that had tried before. It is billed at that model's price.
type ModelUsage struct {
	Model     string `json:"model"`
	Usage     Usage  `json:"usage"`
	Estimated bool   `json:"estimated,omitempty"` // the provider told what was made, not what it took
}

// Negative reports whether any class is below zero, which no provider can mean.
func (u Usage) Negative() bool {
	for _, c := range u.Classes() {
		if c.Tokens < 0 {
			return true
		}
	}
	for _, c := range u.Calls.Classes() {
		if c.Calls < 0 {
			return true
		}
	}
	return false
}

// ServiceTier is the speed and price at which a provider served an answer, in one vocabulary for all providers.
type ServiceTier string

// The service tiers. A provider's other names of its usual tier (default, on_demand, standard) are ServiceStandard.
const (
	ServiceStandard ServiceTier = ""         // the usual one, also when nothing is said
	ServiceBatch    ServiceTier = "batch"    // within a day, cheaper
	ServiceFlex     ServiceTier = "flex"     // when there is room, cheaper
	ServicePriority ServiceTier = "priority" // sooner, dearer
)

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
