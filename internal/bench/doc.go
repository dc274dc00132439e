// Package bench measures the gateway against what it adds to: the provider alone and a bare reverse proxy, in one run on one
// machine, with every part as a process of its own.
//
// A point is one target (direct, proxy, tollgate) under one load (plain or streamed, the provider's latency, connections). The
// three targets of a load are measured one after the other, so that a noisy machine hits them alike. Each response is checked:
// status 200, complete, and a stream up to its [DONE].
//
// # What is counted
//
// The processor time of a process is read from /proc before a point and after it, warm-up included, and divided by all its
// requests. Tollgate's points end when the settler has settled every event, and what that took is included: queued work
// counts. Postgres counts with its sessions. The load generator and the simulator are told apart and are not part of the path.
// Latencies are those of requests that began after the warm-up.
//
// # What to beware of
//
// Everything shares the machine's cores, so throughput under load is a division of them; processor time a request is the
// figure to carry elsewhere. At few requests a second the parts' idle work weighs on it; it is printed apart. The column
// foreign is what other programs used meanwhile, in cores: points with much of it say little. Network interrupts count to
// nobody.
//
// It runs on Linux only, and talks to loopback only.
package bench
