// Package gateway is the HTTP data plane: it takes a caller's request, has it admitted, records that it was, forwards it,
// measures what was used, records that, and passes the answer back. exchange.go shows the path of one request from top to
// bottom.
//
// # Guarantees
//
//   - A provider is called only after the reservation's event is durable.
//   - Every reservation gets a Used or a Released event from the gateway that made it, unless that gateway dies; then it
//     expires.
//   - A request is made again only when it cost nothing for sure; each attempt that was answered is a reservation of its own.
//   - Memory does not grow with the size of bodies.
//   - An answer that broke off upstream never looks complete to the caller.
//   - On shutdown new requests are refused, answers in progress finish, and events are flushed.
package gateway
