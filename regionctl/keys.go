package regionctl

import (
	"fmt"

	"github.com/cellgate/cellgate/cells"
)

// The schema of the global store. Everything under intent is small and mirrored by every controller.
const (
	intentPrefix     = "intent/"
	keyHead          = intentPrefix + "head"     // Head
	versionPrefix    = intentPrefix + "version/" // versionRecord by number
	keyRollout       = intentPrefix + "rollout"  // rolloutRecord: the running or last one
	rolloutPrefix    = intentPrefix + "rollouts/"
	targetPrefix     = intentPrefix + "target/" // signed rollout.Target by region
	keyPlan          = intentPrefix + "plan"    // signed steer.Plan
	keySteering      = intentPrefix + "steering"
	evacuationPrefix = intentPrefix + "evacuation/"
	// keyGuard changes with every evacuation and restoration: whoever judges the whole of them conditions on it.
	keyGuard  = intentPrefix + "evacuations"
	keyLeader = intentPrefix + "leader"

	auditPrefix = "audit/"
	planPrefix  = "plans/" // the last plans, signed, by epoch and number
)

// The schema of a region's store: what the region needs to go on without the global store.
const (
	copyPrefix   = "copy/"
	keyCopyOwn   = copyPrefix + "target"
	keyCopyPlan  = copyPrefix + "plan"
	keyCopyEvacs = copyPrefix + "evacuations"
)

func keyVersion(n uint64) string           { return fmt.Sprintf("%s%020d", versionPrefix, n) }
func keyPastRollout(n uint64) string       { return fmt.Sprintf("%s%020d", rolloutPrefix, n) }
func keyTarget(r cells.RegionID) string    { return targetPrefix + string(r) }
func keyEvacuation(c cells.CellID) string  { return evacuationPrefix + string(c) }
func keyAudit(at int64, who string) string { return fmt.Sprintf("%s%020d/%s", auditPrefix, at, who) }
func keyPastPlan(epoch, number uint64) string {
	return fmt.Sprintf("%s%020d/%020d", planPrefix, epoch, number)
}

func keyBlob(digest string) string             { return "blob/" + digest }
func keyBlobChunk(digest string, i int) string { return fmt.Sprintf("chunk/%s/%06d", digest, i) }
