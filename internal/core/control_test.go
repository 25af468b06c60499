package core

import (
	"fmt"
	"strings"
	"time"
)

// controlWords describes the outputs of a LinkControl in short.
func controlWords(now time.Time, outs []Output) string {
	var list []string
	for _, o := range outs {
		switch o := o.(type) {
		case SendLLC:
			w := fmt.Sprintf("send(%d) %v", o.Link, o.Message)
			if o.Tag != 0 {
				w += fmt.Sprintf(" tag=%d", o.Tag)
			}
			list = append(list, w)
		case LinkStep:
			w := "step " + o.Kind.String()
			if o.Kind == StepFailed {
				w += " " + o.Why.String()
			}
			list = append(list, w)
		case ReadyToSend:
			list = append(list, fmt.Sprintf("ready(%d)", o.Link))
		case RMBConfirmed:
			list = append(list, fmt.Sprintf("confirmed(%d)", o.ID))
		case RMBRefused:
			list = append(list, fmt.Sprintf("refused(%d) %v", o.ID, o.Why))
		case RMBDeleted:
			list = append(list, fmt.Sprintf("deleted(%d)", o.ID))
		case ElementLost:
			list = append(list, fmt.Sprintf("lost(%d)", o.Owner))
		case GroupEnding:
			w := "ending " + o.Why.String()
			if o.LinkAlive {
				w += " alive"
			}
			list = append(list, w)
		case GroupEnded:
			list = append(list, "ended")
		case SetTimer:
			list = append(list, fmt.Sprintf("t(%v)", o.At.Sub(now)))
		case ClearTimer:
			list = append(list, "-t")
		default:
			list = append(list, fmt.Sprintf("unknown %T", o))
		}
	}
	return strings.Join(list, ", ")
}
