// The page of one plan.

showViews(data.views.map(decodeView));
recolour();
