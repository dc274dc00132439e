// Package provider speaks the providers' protocols: it reads from a caller's body what admission must know, forwards it,
// relays the answer byte for byte, and meters what was used.
//
// Nothing is translated: an endpoint belongs to a protocol, and so does each provider.
//
// # To add a kind of request
//
// Write one file. It declares its rows, a []api, each with an Endpoint, and names for it
//
//   - parse, which reads the request: its model, its end user, the bound of its answer, how many answers there will be, and the
//     classes that are dearer than plain input and output;
//   - input, which adds up what is to be estimated of it;
//   - answer and meter, which read the usage of a plain answer and of a stream, and must read the same from both;
//   - billing, where its provider charges nothing.
//
// Then name the rows in the table of protocol.go. Routes, limits, metering, the command price and the fuzz targets follow the table. A
// protocol that asks its providers in another way is one more row of protocols, a constant of policy.Protocol, and the dialect in
// which the gateway answers its callers by itself. Golden cases are a table in the file's own test, and exchanges in
// e2e/testdata/exchanges.jsonl; the simulator answers what is in internal/sim.
//
// # What a caller can rely on
//
//   - Bytes pass through unchanged, except a usage chunk that only metering asked for: it is withheld.
//   - An answer that breaks off upstream never looks complete: the connection to the caller is aborted too. An error that the
//     provider tells inside a stream is an end, and is passed on.
//   - No provider speaks of limits, organizations or secrets to the caller. Its Retry-After passes, but not one of nothing.
//   - A call sends a request at most once. It is only repeated by the transport when not one byte of it had been written, or when the
//     provider resets its HTTP/2 stream at once, that is, within a second.
//
// # Keys
//
// A key is free, or it rests: for one model, because its provider limits or refuses it there, or is down; for all models, because
// the key is refused or nobody answers. A rest ends by itself, and one after failures in a row with a single request that finds
// out. Success forgets all of it. Each gateway learns for itself; nothing of it decides what is admitted.
//
// # Estimates
//
// What a request will use is judged from its body: exactly where the model's tokenizer is known, by a heuristic elsewhere,
// images, audio and documents by the providers' rules for their size, and the most a provider documents where the size
// cannot be read. Nobody can know before what a tool that the provider runs itself will find and bill, or how long a file is
// that lies elsewhere: for those a usual amount is taken. The work is linear in the body, and what is counted exactly bounded.
//
// # What is billed beside the tokens of a model
//
// Searches, searched files and containers are counted as the providers count them: by their own figures where they tell them, else
// by what the answer shows. Tokens of another model in the same answer (one that advised, that drew images, that had tried before and
// gave up) are told in Answer.Others and cost what that model costs; steps that shortened the conversation are in the usage. What the
// provider says that the answer cost is kept beside (Answer.Cost) and decides nothing.
//
// # Streams
//
// What a stream carries of the answer is counted while it comes, by the tokenizer of its model or else by the heuristic: that is
// its usage where the provider does not report any, or zeros in spite of it. A stream is complete when every choice that has begun
// has ended. A Ceiling has more asked for before what is held is used up. Where it is refused, the stream ends as its protocol ends
// an answer that has reached its bound: SDKs take that for a whole answer, and would throw away one that ends with an error. The
// last event says why, under tollgate. Streams of images and of speech have no ceiling.
//
// What is held back of an event that is not whole yet is bounded, for each stream and for all together.
//
// # Not guaranteed
//
// Where a provider reports no usage the charge is an estimate, marked so; where a stream of Anthropic's ends before its final
// figures, that is the input as its start told it, and the output as it was streamed. A response in the background is charged
// its estimate. Time is not metered: what Anthropic and Groq bill by the hour for running code. Nor is what a provider charges more
// for a place or a faster mode (inference_geo, speed). Groq's compound models are priced by the models beneath them, which no book
// row can say: they have no price unless the policy gives one. Tokens of another model are in the cost, and in no budget of tokens.
package provider
