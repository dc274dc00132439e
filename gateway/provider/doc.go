// Package provider speaks the providers' protocols: it reads from a caller's body what admission must know, forwards it,
// relays the answer byte for byte, and meters what was used.
//
// A kind of request is one file: a parser for the request (model, output bound, what to estimate) and one for the usage, in a
// body and in a stream. It is a row of the table in protocol.go; the rest of the package does not know protocols. Nothing is
// translated: an endpoint belongs to a protocol, and so does each provider.
//
// # What a caller can rely on
//
//   - Bytes pass through unchanged, except a usage chunk that only metering asked for: it is withheld.
//   - An answer that breaks off upstream never looks complete: the connection to the caller is aborted too. An error that the
//     provider tells inside a stream is an end, and is passed on.
//   - No provider speaks of limits, organizations or secrets to the caller. Its Retry-After passes, but not one of nothing.
//   - A request is sent at most once. It is only repeated by the transport when not one byte of it had been written.
//
// # Estimates
//
// What a request will use is judged from its body: exactly where the model's tokenizer is known, by a heuristic elsewhere,
// images, audio and documents by the providers' rules for their size, and the most a provider documents where the size
// cannot be read. Nobody can know before what a tool that the provider runs itself will find and bill, or how long a file is
// that lies elsewhere: for those a usual amount is taken. The work is linear in the body, and what is counted exactly bounded.
//
// # Not guaranteed yet
//
// Where a provider reports no usage the charge is an estimate, marked so; where a stream of Anthropic's ends before its final
// figures, that is the input as its start told it, and the output as it was streamed. A response in the background is charged
// its estimate; images that one draws by a tool are billed by a model of their own, and are not counted.
// What Anthropic tells apart from a message's usage, under iterations, is not counted: what another model or a compaction used
// inside one answer.
package provider
