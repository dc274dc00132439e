package command

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tollgate/migrations"
)

func newMigrate() *cobra.Command {
	up := &cobra.Command{
		Use: "up", Short: "Apply every migration that the database lacks; safe when several start at once", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			url, err := databaseURL()
			if err != nil {
				return err
			}
			if err := migrations.Up(c.Context(), url); err != nil {
				return err
			}
			return printMigrations(c, url)
		},
	}
	status := &cobra.Command{
		Use: "status", Short: "List migrations and whether the database has them", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			url, err := databaseURL()
			if err != nil {
				return err
			}
			return printMigrations(c, url)
		},
	}
	return group("migrate", "Bring the database schema up to date", up, status)
}

func databaseURL() (string, error) {
	var config struct{ Connections }
	if err := readEnv(&config); err != nil {
		return "", err
	}
	return config.Database.Reveal(), config.needDatabase()
}

func printMigrations(c *cobra.Command, url string) error {
	states, err := migrations.Status(c.Context(), url)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, s := range states {
		fmt.Fprintf(table, "%05d\t%s\t%s\n", s.Version, s.Name, day(s.AppliedAt))
	}
	return table.Flush()
}
