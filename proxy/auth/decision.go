package auth

import "errors"

var errDecision = errors.New("auth: not a decision")

// Allowed reads a service's decision, a JSON object with "allow", true or false. An error says that it decided nothing.
func Allowed(answer []byte) (bool, error) {
	m, err := object(answer)
	allow, ok := m["allow"].(bool)
	if err != nil || !ok {
		return false, errDecision
	}
	return allow, nil
}
