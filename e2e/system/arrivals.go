package system

import (
	"sync"
	"time"
)

// Arrivals makes so many calls a second, each in its turn whatever became of those before, until stop is called, which waits
// for those under way and returns all answers: a server that stalls is not spared the load.
func Arrivals(perSecond int, call func(i int) Answer) (stop func() []Answer) {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		answers []Answer
		ending  = make(chan struct{})
	)
	wg.Go(func() {
		begun := time.Now()
		ticker := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		for i := 0; ; {
			select {
			case <-ending:
				return
			case <-ticker.C:
			}
			// A ticker drops what it is late with.
			for due := int(time.Since(begun).Seconds() * float64(perSecond)); i < due; i++ {
				n := i
				wg.Go(func() {
					a := call(n)
					mu.Lock()
					defer mu.Unlock()
					answers = append(answers, a)
				})
			}
		}
	})
	return func() []Answer {
		close(ending)
		wg.Wait()
		return answers
	}
}
