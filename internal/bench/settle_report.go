package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// minSettleShare is the part of the slower of bare consume and bare copy that settlement is to reach.
const minSettleShare = 0.5

// Print writes the table for people.
func (r *Settlement) Print(out io.Writer) error {
	fmt.Fprintf(out, "\n%d events of %d bytes, two a request; %d cores shared by everything, %s. CPU in µs an event.\n\n",
		r.Events, r.Bytes, r.Cores, r.Go)
	var bare, best float64
	for _, x := range r.Rounds {
		if x.Bare && (bare == 0 || x.Rate < bare) {
			bare = x.Rate
		}
		if x.Settled {
			best = max(best, x.Rate)
		}
	}
	if bare == 0 {
		return nil // the run was ended before there was anything to compare with
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tevents/s\t×bare\tsettlers\tpostgres\tredis\tnats\tthis client\tforeign\t")
	for _, x := range r.Rounds {
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t\n", x.What, x.Rate, x.Rate/bare,
			x.CPU[partSettler], x.CPU[partPostgres], x.CPU[partRedis], x.CPU[partNATS], x.CPU[partLoad], x.Foreign)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := "met    "
	if best < minSettleShare*bare {
		verdict = "NOT MET"
	}
	_, err := fmt.Fprintf(out, "\n%s  settlement at its best: %.0f events/s, at least %.0f (half of the slower bare one)\n",
		verdict, best, minSettleShare*bare)
	return err
}
