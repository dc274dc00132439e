// Package outbox is the gateway's durable way out for events: each is appended to a segment file first and published
// afterwards, so that the stream is transport and never the only copy.
//
// A segment is a file of frames, each a length, a CRC-32C and the event's bytes. It is synced in the background; Record
// waits for the stream's acknowledgement and only syncs itself when none comes in time. A segment is removed when the
// settler has confirmed that Postgres holds this gateway's sequence up to its end. Whatever is left at a start is published
// again: the message id makes that harmless.
//
// # States of an event
//
//	appended ── published ── acknowledged ── confirmed (segment removed)
//	               └── no ack in time ─> published again by the drainer
//
// # Not guaranteed
//
// An event that was acknowledged by the stream but not yet synced here, and whose stream and machine then both lose their
// last writes, is gone; its sequence number is missing in Postgres, and the settler reports the gap.
package outbox
