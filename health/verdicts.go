package health

import "github.com/cellgate/cellgate/cells"

// VerdictsForm is the version of the sent form of Verdicts.
const VerdictsForm = 1

// Verdicts is what one judge believes of the cells at a moment; cells that it leaves out are unknown to it.
type Verdicts struct {
	Form int `json:"form"`
	// Count grows with each message of one judge, so that no two are the same.
	Count uint64                  `json:"count"`
	Cells map[cells.CellID]Status `json:"cells"`
	// Reached are the cells that some vantage point reaches now. One that is unknown to a judge who cannot get at it himself
	// lives all the same when it is among them.
	Reached map[cells.CellID]bool `json:"reached,omitempty"`
}
