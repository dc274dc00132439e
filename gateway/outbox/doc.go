// Package outbox is the gateway's durable way out for events: each is appended to a segment file first and published
// afterwards, so that the stream is transport and never the only copy.
//
// A segment is a file of frames, each a length, a CRC-32C and the event's bytes. It is synced in the background. Record waits
// for the stream's acknowledgement and only syncs itself when none comes in time; with DurabilitySync it waits for both, and is
// refused while either is not to be had. A segment is removed when the settler has confirmed that Postgres holds all its events.
// Whatever is left at a start is published again: the message id makes that harmless.
//
// # States of an event
//
//	appended ── published ── acknowledged ── confirmed (segment removed)
//	               │                    └── lost by the stream ─> published again
//	               └── no ack in time ─> published again by the drainer
//
// An event is lost when the settler has settled everything that the stream held, and Postgres still lacks what the stream had
// acknowledged before: then no one but the outbox has it. It is published again under another message id, because the stream
// may remember the id of what it lost.
//
// The segments take at most Config.MaxBytes. What cannot be kept for want of room is treated as on a full disk:
//
// An event that cannot be appended (the disk is full) is published all the same and needs the stream's acknowledgement: its
// number is noted in the file unkept, so that it is never given to another event. While the disk cannot be synced it counts as
// full. What a failed sync may have dropped is in memory still, and written again before the next.
//
// # Who waits for whom
//
// Record and Append write to the segment under the lock and to nothing else: a goroutine of Run writes to the connection, so
// a stream that is silent costs Record its timeout and Append nothing. Syncs take turns; whoever comes second waits for the
// first, then finds its own event synced, or syncs for all that came meanwhile.
//
// # Not guaranteed
//
// When the machine fails (not only the process), what was appended since the last sync is gone here; with DurabilitySync
// nobody was answered about it. An event among it that the stream acknowledged is delivered, but its number is given out again;
// one that the stream lost too is lost unnoticed.
package outbox
