drop table penstock.offer;
