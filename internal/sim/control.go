package sim

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"
)

// serveControl replaces the defaults of all later requests by the settings of a JSON object; {} brings the Config's back.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
	b := s.cfg.behaviour()
	if err == nil {
		err = b.setJSON(body)
	}
	if err != nil {
		badRequest("simulator: "+err.Error(), "", "invalid_setting").write(w)
		return
	}
	s.behaviour.Store(&b)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) serveReset(w http.ResponseWriter, _ *http.Request) {
	s.Reset()
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) serveTotals(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(s.Totals())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, append(body, '\n'))
}

// serveBooks writes the records as one JSON array. ?since= is a record's number, for those after it, or an RFC 3339 time,
// for those that finished at or after it.
func (s *Server) serveBooks(w http.ResponseWriter, r *http.Request) {
	first, finished := 0, time.Time{}
	v := s.books.view()
	if since := r.URL.Query().Get("since"); since != "" {
		number, err := strconv.ParseUint(since, 10, 63)
		if err == nil {
			first = int(min(number, uint64(v.len())))
		} else if finished, err = time.Parse(time.RFC3339Nano, since); err != nil {
			badRequest("since is neither a number nor an RFC 3339 time", "since", "").write(w)
			return
		}
	}
	w.Header()["Content-Type"] = jsonType
	buffer := []byte{'['}
	separator := ""
	for i := first; i < v.len(); i++ {
		record := v.record(i)
		if record.FinishedAt.Before(finished) {
			continue
		}
		text, err := json.Marshal(record)
		if err != nil {
			panic(http.ErrAbortHandler) // a cut body cannot be taken for the whole books
		}
		buffer = append(append(buffer, separator...), text...)
		separator = ",\n"
		if len(buffer) > 1<<16 {
			if _, err := w.Write(buffer); err != nil {
				return // the reader left
			}
			buffer = buffer[:0]
		}
	}
	_, _ = w.Write(append(buffer, "]\n"...))
}
