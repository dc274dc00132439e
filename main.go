// Command tollgate is an LLM gateway with an event-sourced quota ledger.
package main

import (
	"os"

	"tollgate/internal/command"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
