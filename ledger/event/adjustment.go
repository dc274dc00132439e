package event

import (
	"errors"
	"fmt"
	"strconv"

	"tollgate/ledger"
)

// Adjustment corrects what a request that was used was charged. Its event carries the whole reservation and the outcome as it now
// counts, so that the latest adjustment alone says what the request costs; occurred_at is the time of the use.
type Adjustment struct {
	Number  int              `json:"number"` // among the adjustments of the reservation, from 1 without gap
	Reason  AdjustmentReason `json:"reason"`
	Before  ledger.NanoUSD   `json:"before_nanousd"` // charged by the adjustment before, or by the use; the outcome's cost is another one
	Gateway string           `json:"gateway"`        // producer of the used event
}

// AdjustmentReason is why a request was charged wrongly.
type AdjustmentReason string

// AdjustmentPrice is the reason of a request that other price rows apply to than those it was charged by.
const AdjustmentPrice AdjustmentReason = "price"

// AdjustedID is the id of the n-th adjustment of a reservation. Whoever computes it from the same book writes the same event; two
// that were computed from different books beside each other are a conflict, so that only one counts.
func AdjustedID(reservation string, number int) string {
	return ID(reservation, KindAdjusted) + ":" + strconv.Itoa(number)
}

func (e *Event) checkAdjustment() error {
	a := e.Adjustment
	switch {
	case a == nil:
		return errors.New("adjusted without adjustment")
	case a.Number < 1:
		return fmt.Errorf("adjustment number %d", a.Number)
	case a.Reason != AdjustmentPrice:
		return fmt.Errorf("unknown reason %q of an adjustment", a.Reason)
	case a.Before < 0:
		return errors.New("adjustment of a negative charge")
	case e.Outcome != nil && a.Before == e.Outcome.Cost:
		return errors.New("adjustment that changes nothing")
	}
	return nil
}
