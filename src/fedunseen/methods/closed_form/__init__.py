"""Methods in closed form: sums over samples give the model, without a gradient and in one round."""
