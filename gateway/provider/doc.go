// Package provider speaks the providers' protocols: it reads from a caller's body what admission must know, forwards it,
// relays the answer byte for byte, and meters what was used.
//
// A protocol is one file: a parser for the request (model, output bound, what to estimate) and one for the usage, in a body
// and in a stream. The rest of the package does not know protocols.
//
// # What a caller can rely on
//
//   - Bytes pass through unchanged, except a usage chunk that only metering asked for: it is withheld.
//   - An answer that breaks off upstream never looks complete: the connection to the caller is aborted too.
//   - A request is sent at most once. It is only repeated by the transport when not one byte of it had been written.
//
// # Not guaranteed yet
//
// Where a provider reports no usage the charge is an estimate, marked so.
package provider
