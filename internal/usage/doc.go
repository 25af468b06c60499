// Package usage reads the command lines of gosmc and explains them: checks of arguments, errors with
// the values that would be right, help with exit statuses, completion, and manual pages. It knows
// commands of cobra, and none of the verbs.
package usage
