#pragma once

/* Ends the program where what is told of a call's operands is not what a rank expects. */
void infer(void);
