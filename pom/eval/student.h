// Student's t distribution, from the incomplete beta function. No torch.
#pragma once

namespace pom::eval {

// The share of the beta distribution with shapes a, b > 0 that lies below x in [0, 1].
double incomplete_beta(double a, double b, double x);

// The chance that t of `degrees` of freedom (above 0) is below `t`, and the t of which that chance is `p`, in
// (0, 1).
double student_cdf(double t, double degrees);
double student_quantile(double p, double degrees);

}  // namespace pom::eval
