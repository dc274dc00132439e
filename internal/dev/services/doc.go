// Package services starts Postgres, Redis and NATS on one machine, for development and tests.
//
// Postgres and Redis are child processes of this one, NATS runs inside it, and so does Redis where no redis-server is found. All
// listen on loopback TCP only. The context of a Start function bounds the start, not the life of the service: that ends with
// Stop, or, on Linux, with this process, however it dies.
//
// Every service owns its data directory through a lock file, so a second start on the same data fails instead of harming it.
//
// Postgres refuses to run as root. Root's Postgres therefore runs as the owner of its data, which is at first the user postgres,
// or nobody where there is no postgres. Folders above the data that such a user may not enter are no hindrance on Linux: the
// server then gets the capability CAP_DAC_OVERRIDE. Its programs must lie where the user may go.
package services
