package store

import (
	"crypto/sha256"
	"fmt"

	"github.com/cellgate/cellgate/cells"
)

// This file is the whole schema: no other spells a key. Numbers are padded so that key order is their order.

// The global store. Everything under PrefixIntent is small, and every controller mirrors it.
const (
	PrefixIntent      = "intent/"
	KeyLeader         = PrefixIntent + "leader"   // who leads; its creation revision is the epoch
	KeyEpochs         = PrefixIntent + "epochs"   // what is added to that revision since the store was restored
	KeyHead           = PrefixIntent + "head"     // the last version number given out
	PrefixVersions    = PrefixIntent + "version/" // KeyVersion
	KeyRollout        = PrefixIntent + "rollout"  // rollout.State
	PrefixRollouts    = PrefixIntent + "rollouts/"
	PrefixTargets     = PrefixIntent + "target/"     // KeyTarget
	KeyPlan           = PrefixIntent + "plan"        // refers to the signed steer.Plan
	KeySteering       = PrefixIntent + "steering"    // refers to the steer.State
	PrefixEvacuations = PrefixIntent + "evacuation/" // KeyEvacuation
	// KeyGuard changes with every evacuation and restoration: whoever judges the whole of them conditions on it.
	KeyGuard     = PrefixIntent + "evacuations"
	PrefixIssued = PrefixIntent + "key/" // KeyIssued
	KeyIssuance  = PrefixIntent + "keys" // when the issued API keys were last changed; changes with each of them
	// KeySweep says whether a leader is deleting blobs: the mark of Blobs.Sweep.
	KeySweep = PrefixIntent + "sweep"

	PrefixAudit = "audit/" // KeyAudit
	PrefixPlans = "plans/" // KeyPastPlan
)

// A region's store: what the region needs to go on without the global one.
const (
	PrefixCopy      = "copy/"
	KeyCopyTarget   = PrefixCopy + "target"
	KeyCopyPlan     = PrefixCopy + "plan"  // as KeyPlan
	KeyCopySweep    = PrefixCopy + "sweep" // as KeySweep
	KeyCopyEvacuees = PrefixCopy + "evacuations"
	// KeyCopyOrders holds the evacuations that were ordered or restored without the global store.
	KeyCopyOrders = PrefixCopy + "orders"
	// PrefixDenied holds the region's denylist, an entry a key; KeyDenyGuard changes with every addition.
	PrefixDenied = PrefixCopy + "denied/" // KeyDenied
	KeyDenyGuard = PrefixCopy + "denylist"

	// The copy of PrefixIssued and KeyIssuance.
	PrefixCopyIssued = PrefixCopy + "key/"
	KeyCopyIssuance  = PrefixCopy + "keys"

	PrefixQuotas = "quota/" // KeyQuotas
)

// Both: blobs by digest. A head is written after its chunks.
const (
	prefixBlobs  = "blobs/"
	prefixChunks = "chunks/"
)

// KeyVersion holds the record of one published version.
func KeyVersion(n uint64) string { return fmt.Sprintf("%s%020d", PrefixVersions, n) }

// KeyPastRollout holds a rollout that has ended.
func KeyPastRollout(n uint64) string { return fmt.Sprintf("%s%020d", PrefixRollouts, n) }

// KeyTarget holds the signed rollout.Target of one region.
func KeyTarget(r cells.RegionID) string { return PrefixTargets + string(r) }

// KeyEvacuation holds the order that concerns one cell.
func KeyEvacuation(c cells.CellID) string { return PrefixEvacuations + string(c) }

// KeyIssued holds the API keys that were issued to one consumer.
func KeyIssued(consumer string) string { return PrefixIssued + consumer }

// KeyDenied holds one entry of the denylist, by the SHA-256 of its name.
func KeyDenied(name string) string {
	return fmt.Sprintf("%s%x", PrefixDenied, sha256.Sum256([]byte(name)))
}

// KeyAudit holds one entry of the audit log; at is in nanoseconds since 1970.
func KeyAudit(at int64, who string) string { return fmt.Sprintf("%s%020d/%s", PrefixAudit, at, who) }

// KeyPastPlan refers to one of the last plans.
func KeyPastPlan(epoch, number uint64) string {
	return fmt.Sprintf("%s%020d/%020d", PrefixPlans, epoch, number)
}

// KeyQuotas holds a part of what is spent of the daily quotas that the region keeps.
func KeyQuotas(part int) string { return fmt.Sprintf("%s%02d", PrefixQuotas, part) }

func keyBlob(digest string) string { return prefixBlobs + digest }

func keyChunks(digest string) string { return prefixChunks + digest + "/" }

func keyChunk(digest string, n int) string { return fmt.Sprintf("%s%06d", keyChunks(digest), n) }
