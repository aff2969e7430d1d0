package steer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Row is 256 slots; each names a cell by its index in Plan.Cells.
// In JSON it is a string of runs: "0*128 1*128" gives the first 128 slots to cell 0 and the rest to cell 1.
type Row []uint16

// MarshalJSON prints the runs.
func (r Row) MarshalJSON() ([]byte, error) {
	var b []byte
	b = append(b, '"')
	for i := 0; i < len(r); {
		j := i
		for j < len(r) && r[j] == r[i] {
			j++
		}
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendUint(b, uint64(r[i]), 10)
		b = append(b, '*')
		b = strconv.AppendInt(b, int64(j-i), 10)
		i = j
	}
	return append(b, '"'), nil
}

// UnmarshalJSON reads the runs; they must come to exactly Slots slots.
func (r *Row) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return fmt.Errorf("a row is a string of runs such as \"0*128 1*128\": %w", err)
	}
	row := make(Row, 0, Slots)
	for run := range strings.FieldsSeq(text) {
		cell, count, _ := strings.Cut(run, "*")
		c, err1 := strconv.ParseUint(cell, 10, 16)
		n, err2 := strconv.Atoi(count)
		if err1 != nil || err2 != nil || n < 1 || n > Slots-len(row) {
			return fmt.Errorf("row: run %q is not CELL*COUNT, or the row has more than %d slots", run, Slots)
		}
		for range n {
			row = append(row, uint16(c))
		}
	}
	if len(row) != Slots {
		return fmt.Errorf("row: %d slots, not %d", len(row), Slots)
	}
	*r = row
	return nil
}

// printed is about how many bytes the row takes in JSON.
func (r Row) printed() int {
	const run = 8 // "123*128 "
	n := run
	for i := 1; i < len(r); i++ {
		if r[i] != r[i-1] {
			n += run
		}
	}
	return n
}

// count is how many slots the cell owns.
func (r Row) count(cell int) (n int) {
	for _, c := range r {
		if int(c) == cell {
			n++
		}
	}
	return n
}
