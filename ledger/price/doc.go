// Package price holds the dated price book and turns a usage into money.
//
// It is pure: no I/O, no clock, no goroutine. The built-in book is a file of facts embedded in the package (see Sheet for
// its format, Import for where they come from); a policy lays its own prices on top with Book.With.
//
// # Known, zero, missing
//
// A price is known, explicitly zero, or missing, and missing is never zero. Book.Find answers false for an unknown model,
// for a date that no row covers and for a model whose row lists no price at all; Row.Cost and Row.UpperBound answer
// ErrMissingPrice when a class that has tokens has no price.
//
// # A class that a row does not list
//
//   - cached_input, cache_write_5m, input_image, input_video: the input price. A provider that bills them apart lists them, and
//     reading from a cache is never dearer than reading the prompt.
//   - cached_input_audio, cached_input_image: the price of cached_input where the row prices the kind as text, else that of the
//     kind itself.
//   - cache_write_1h: the input price where the row knows no price of cache writes at all. Where it prices the five-minute
//     write only, missing: an hour costs more wherever both are known (Anthropic: 2 instead of 1.25 times the input price).
//   - reasoning: the output price.
//   - input, output, input_audio, output_audio, output_image, output_video: missing. Audio and images cost up to sixteen times the text
//     price of the same model (gpt-4o-audio), so text prices must not stand in for them. Where a provider says that one
//     price covers them, Import writes it down in the row.
//   - any class in Row.Unpriced: missing, no fallback.
//
// # Steps
//
// A price may step up above a number of input tokens (200,000; 272,000). The threshold counts every input token, cached or
// not, is exclusive, and re-prices the whole request, output included. All known steps work this way. A price may say that it
// is marginal instead: then each step prices only the tokens of the class above it.
//
// # Service tiers
//
// A row may price the tiers batch, flex and priority apart. A class that a tier does not list costs the usual price in batch and
// flex, which are never dearer, and is missing in priority. The tier of the answer decides the cost; that of the request raises
// the upper bound.
//
// # Calls
//
// Tools that the provider runs and bills by the call are charged by the call. A call without a price is missing like a class of
// tokens.
//
// # Guaranteed
//
//   - Money is computed in 128 bits and rounded half-up once for each component; components sum to the total; a sum past
//     int64 is ErrOverflow. A cost is never negative.
//   - The text of a row's ID contains a hash of everything that decides a cost, so an ID in a transfer pins the prices for
//     ever. It does not depend on which models the row matches, nor on when its successor ends it.
//   - Row.UpperBound is at least Row.Cost of any split of the same tokens, at the same instant, into the classes that it
//     considers.
//
// # Not guaranteed
//
// What a provider gives away, so many searches a day, is charged too: the book knows list prices. Tokens of citations are kept
// as a fact and never charged.
package price
