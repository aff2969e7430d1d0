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
}
